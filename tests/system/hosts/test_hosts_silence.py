"""Links between hosts notice a host that has fallen silent within HOROVOD_GLOO_TIMEOUT_SECONDS."""

import time

import pytest

import host_programs
from launchers import program_words
from namespaces import Network

pytestmark = [pytest.mark.netns, pytest.mark.timeout(300)]

TIMEOUT_S = 3
MARGIN_S = 20  # for a busy machine


@pytest.mark.parametrize("talk", [(), ("talk",)], ids=["idle", "busy"])
@pytest.mark.parametrize("cut", [Network.link_down, Network.unplug])
def test_a_host_that_is_cut_off_is_noticed_on_both_sides(cluster, cut, talk):
    made = cluster(1, 1, 1)
    environment = {"HOROVOD_GLOO_TIMEOUT_SECONDS": str(TIMEOUT_S)}
    process = made.start("-np", 3, *program_words(host_programs.watch_the_links, *talk), env=environment)
    made.wait_for(3, "ready.")
    cut(made.network, 2)
    (made.folder / "cut.new").write_text(f"{time.monotonic()}\n")
    (made.folder / "cut.new").rename(made.folder / "cut")
    lost = {}
    while len(lost) < 2:
        rank, _, said = process.stdout.readline().decode().partition("]<stdout>:")
        peer, error, seconds = said.split()
        lost[int(rank[1:]), int(peer)] = error, float(seconds)
    process.terminate()
    process.communicate(timeout=100)
    assert lost.keys() == {(0, 2), (2, 0)}
    for error, seconds in lost.values():
        assert error in ("ETIMEDOUT", "EHOSTUNREACH", "ENETUNREACH")
        assert seconds < TIMEOUT_S + MARGIN_S
