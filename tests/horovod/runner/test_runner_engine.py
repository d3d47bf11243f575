"""horovodrun and horovod.run with the real engine in the ranks: they connect, work, and fail together."""

import os
import signal
import time

import pytest

import horovod
import runner_ranks
from launchers import left_in_shared_memory, program_words

pytest.importorskip("hvd_core._core", reason="the engine is not built")


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_ranks_work_together(launcher, count):
    done = launcher.python(count, runner_ranks.sum_ones)
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
    process = launcher.start_python(3, runner_ranks.train)
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


def test_an_exit_code_that_looks_like_a_signal_is_an_exit_code(launcher):
    done = launcher.run("-np", 2, *program_words(runner_ranks.rank_1_exits_before_init, 137))
    assert done.returncode == 137
    assert "exit code 137" in done.stderr and "killed by SIGKILL" not in done.stderr


def test_a_rank_that_never_comes_is_named(launcher):
    done = launcher.python(2, runner_ranks.rank_1_never_comes, "--start-timeout", 2)
    assert done.returncode == 1
    assert "rank 1 of 2 has not called init()" in done.stderr
    assert "within 2 s" in done.stderr
    assert launcher.processes() == []
