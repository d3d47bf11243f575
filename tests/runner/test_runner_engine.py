"""horovodrun and horovod.run with the real engine in the ranks: they connect, work, and fail together."""

import os
import signal
import time

import pytest
from launchers import left_in_shared_memory

import horovod

pytest.importorskip("hvd_core._core", reason="the engine is not built")

# Two ranks in the middle of work, each with a forked child that holds every descriptor, as data loaders do.
TRAIN = """
import os, signal, time
import numpy as np
import hvd_core as hvd
hvd.init()
if os.fork() == 0:
    time.sleep(600)
# A rank that has not reported within a second gets SIGTERM; on a busy machine that is early.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
step = 0
while True:
    hvd.allreduce(np.full(100000, hvd.rank(), np.float32), name="gradient")
    step += 1
    if step == 50:
        with open(f"ready.{hvd.rank()}", "w") as file:
            file.write(f"{os.getpid()}\\n")
"""


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_ranks_work_together(launcher, count):
    code = """
import numpy as np
import hvd_core as hvd
hvd.init()
print(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.allreduce(np.ones(3), op=hvd.Sum).tolist())
"""
    done = launcher.python(count, code)
    assert done.returncode == 0, done.stderr
    expected = [f"[{rank}]<stdout>:{rank} {count} {rank} {[float(count)] * 3}" for rank in range(count)]
    assert sorted(done.stdout.splitlines()) == expected


def test_functions_work_together():
    def work(scale):
        import numpy as np

        import hvd_core as hvd

        hvd.init()
        return hvd.rank(), hvd.allreduce(np.ones(2) * scale * hvd.rank(), op=hvd.Sum).tolist()

    assert horovod.run(work, (10,), num_proc=2) == [(0, [10.0, 10.0]), (1, [10.0, 10.0])]


def test_kill_9_in_the_middle_of_work_names_the_rank_and_leaves_nothing(launcher):
    before = set(os.listdir("/dev/shm"))
    process = launcher.start_python(3, TRAIN)
    pids = launcher.wait_for(3, "ready.")
    start = time.monotonic()
    os.kill(int(pids[1]), signal.SIGKILL)
    _, err = process.communicate(timeout=100)
    assert time.monotonic() - start < 25  # 5, on a machine without other work
    assert process.returncode == 128 + 9
    for rank in (0, 2):
        lines = [line for line in err.decode().splitlines() if line.startswith(f"[{rank}]<stderr>:")]
        said = [line for line in lines if "JobEndedError" in line]
        assert said and "rank 1" in said[-1], lines
    assert launcher.processes() == []
    assert left_in_shared_memory(before) == []


def test_a_rank_that_never_comes_is_named(launcher):
    code = """
import os, time
if os.environ["HOROVOD_RANK"] == "1":
    time.sleep(600)
import hvd_core as hvd
hvd.init()
"""
    done = launcher.python(2, code, "--start-timeout", 2)
    assert done.returncode == 1
    assert "rank 1 of 2 has not called init()" in done.stderr
    assert "within 2 s" in done.stderr
    assert launcher.processes() == []
