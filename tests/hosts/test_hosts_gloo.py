"""The gloo backend between hosts: flat, and as the level between hosts of which each uses shared memory within."""

import sys
from importlib.metadata import entry_points

import pytest

pytest.importorskip("hvd_core._core", reason="the engine is not built")
pytestmark = [pytest.mark.netns, pytest.mark.timeout(300)]

PROGRAM = """
import numpy as np
import hvd_core as hvd
hvd.init()
rank, size = hvd.rank(), hvd.size()
for count in (1, 1000, 70_001):
    for dtype in (np.float32, np.int64, np.float16):
        mine = [(np.arange(count) % 50 + one).astype(dtype) for one in range(size)]
        where = f"{np.dtype(dtype).name} x {count}"
        total = hvd.allreduce(mine[rank], op=hvd.Sum, name="sum " + where)
        assert np.array_equal(total, sum(mine)), where
        for root in range(size):
            assert np.array_equal(hvd.broadcast(mine[rank], root, name=f"from {root} " + where), mine[root]), where
        parts = [np.full((one + 1, 3), one, dtype) for one in range(size)]
        assert np.array_equal(hvd.allgather(parts[rank], name="gather " + where), np.concatenate(parts)), where
        share = hvd.reducescatter(mine[rank], op=hvd.Sum, name="scatter " + where)
        assert share.size in (count // size, count // size + 1), where
hvd.barrier()
if rank == 0:
    print(hvd.backend_report())
hvd.shutdown()
print("right")
"""


@pytest.fixture(autouse=True)
def installed():
    found = list(entry_points(group="hvd_core.backends", name="gloo"))
    if not found or not found[0].load()().library.is_file():
        pytest.skip("the gloo backend is not built: this machine has no libgloo-dev, and could not get it")


@pytest.mark.parametrize(
    ("chosen", "slots"), [("gloo", (1, 1)), ("gloo", (2, 1)), ("shm,gloo", (2, 2))], ids=str
)
def test_hosts_are_joined_by_gloo(cluster, chosen, slots):
    done = cluster(*slots).run(
        "-np", sum(slots), sys.executable, "-c", PROGRAM, env={"HOROVOD_BACKEND": chosen}, timeout=250
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.count("right") == sum(slots)
    print(done.stdout)
    assert "gloo" in done.stdout and ("shm" in done.stdout) == chosen.startswith("shm")
