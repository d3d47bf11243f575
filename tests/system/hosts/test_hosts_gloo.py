"""The gloo backend between hosts: flat, and as the level between hosts of which each uses shared memory within."""

from importlib.metadata import entry_points

import pytest

from host_words import rank_words

pytest.importorskip("hvd_core._core", reason="the engine is not built")
pytestmark = [pytest.mark.netns, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def installed():
    found = list(entry_points(group="hvd_core.backends", name="gloo"))
    if not found or not found[0].load()().library.is_file():
        pytest.skip("the gloo backend is not built: this machine has no libgloo-dev, and could not get it")


@pytest.mark.parametrize(
    ("chosen", "slots"), [("gloo", (1, 1)), ("gloo", (2, 1)), ("shm,gloo", (2, 2))], ids=str
)
def test_hosts_are_joined_by_gloo(cluster, chosen, slots):
    words = ("-np", sum(slots), *rank_words("over_gloo"))
    done = cluster(*slots).run(*words, env={"HOROVOD_BACKEND": chosen}, timeout=250)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.count("right") == sum(slots)
    print(done.stdout)
    assert "gloo" in done.stdout and ("shm" in done.stdout) == chosen.startswith("shm")
