"""Ranks that die, leave, fork or are interrupted: the others hear of it at once, and nothing is left behind."""

import ctypes
import gc
import multiprocessing
import os
import re
import signal
import sys
import time

import numpy as np
import psutil
import pytest

import hvd_core as hvd
from harness import finish, launch, pids_of, run_on_ranks, run_to_the_end
from harness.rank import await_told, expect, expect_ctrl_c, ignore_the_launcher, meet, tell
from hvd_core._base import native
from hvd_core._runtime import runtime
from hvd_core.backends import BackendNotInstalled
from launchers import left_in_shared_memory, send_each


def seconds_and_output(job, seconds):
    """Waits for the launcher; returns (seconds it took, output)."""
    began = time.monotonic()
    output, _ = job.communicate(timeout=seconds)
    return time.monotonic() - began, output


def train_until_the_job_fails():
    # Workers as a data loader forks them: they inherit the descriptors and outlive the rank that is killed.
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=time.sleep, args=(600,), daemon=True) for _ in range(2)]
    for worker in workers:
        worker.start()
    ignore_the_launcher()
    hvd.barrier()
    print("pid", hvd.rank(), os.getpid(), flush=True)
    while True:
        try:
            hvd.allreduce(np.ones(100_000), name="grad")
        except hvd.HorovodInternalError as error:
            print("heard:", error, flush=True)
            expect(hvd.HorovodInternalError, lambda: hvd.allreduce(np.ones(2)))
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            raise


def killed(tmp_path, victim, ranks, said="pid {pid}) died", env=None):
    """Kills a rank; each of the others hears `said` of it."""
    before = set(os.listdir("/dev/shm"))
    job = launch(ranks, train_until_the_job_fails, folder=tmp_path, env=env)
    pids, text = pids_of(job, ranks)
    family = [psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)]
    time.sleep(0.3)
    os.kill(pids[victim], signal.SIGKILL)
    took, more = seconds_and_output(job, 60)
    output = text + more
    assert job.returncode != 0
    assert took < 20, f"{took:.1f} s until the job was over\n{output}"
    survivors = [line for line in output.splitlines() if "heard:" in line]
    assert len(survivors) == ranks - 1, output
    wanted = re.escape(said.format(pid=pids[victim]))
    for line in survivors:
        assert re.search(rf"rank {victim} \(host .+{wanted}", line), line
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive, alive
    assert not left_in_shared_memory(before)
    return output


def test_kill_of_a_rank(tmp_path):
    killed(tmp_path, victim=1, ranks=2)


def test_kill_of_the_root(tmp_path):
    killed(tmp_path, victim=0, ranks=2)


def test_kill_of_one_of_four(tmp_path):
    killed(tmp_path, victim=2, ranks=4)


def test_kill_with_control_over_tcp(tmp_path):
    gone = ") is gone: control connection"
    killed(tmp_path, victim=1, ranks=3, said=gone, env={"HOROVOD_CONTROL_TRANSPORT": "tcp"})


def test_kill_of_all_ranks_leaves_nothing(tmp_path):
    before = set(os.listdir("/dev/shm"))
    job = launch(3, train_until_the_job_fails, folder=tmp_path)
    pids, _ = pids_of(job, 3)
    family = psutil.Process(job.pid).children(recursive=True)
    send_each(signal.SIGKILL, pids.values())
    took, _ = seconds_and_output(job, 60)
    assert took < 20 and job.returncode != 0
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive
    assert not left_in_shared_memory(before)


def _rank_1_exits():
    ignore_the_launcher()
    if hvd.rank() == 1:
        time.sleep(0.2)
        raise SystemExit(3)
    text = expect(hvd.HorovodInternalError, lambda: hvd.allreduce(np.ones(3), name="alone"))
    print("heard:", text, flush=True)


def test_an_exception_on_one_rank(tmp_path):
    output = run_to_the_end(2, _rank_1_exits, folder=tmp_path, code=3)
    assert "heard: Horovod has been shut down." in output


def _rank_1_finishes():
    hvd.allreduce(np.ones(3), op=hvd.Sum)
    if hvd.rank() == 0:
        text = expect(hvd.HorovodInternalError, lambda: hvd.allreduce(np.ones(3), name="alone"))
        print("heard:", text, flush=True)
        expect(hvd.HorovodInternalError, lambda: hvd.allreduce(np.ones(3)), "Horovod has been shut down.")


def test_a_rank_that_finishes_early(tmp_path):
    output = run_to_the_end(2, _rank_1_finishes, folder=tmp_path)
    assert "heard: Horovod has been shut down. This was caused by an exception on one of the ranks" in output


@pytest.mark.ranks(2)
def test_what_was_agreed_is_finished_before_the_end():
    rank = hvd.rank()
    x = [np.full(3_000_000, rank + 1.0) for _ in range(3)]
    handles = [hvd.allreduce_async_(a, name=f"x{i}", op=hvd.Sum) for i, a in enumerate(x)]
    hvd.allreduce(np.ones(1))  # decided after the others
    if rank == 0:
        hvd.shutdown()
    else:
        for h in handles:
            hvd.synchronize(h)
    for a in x:
        assert (a == 3).all()


@pytest.mark.ranks(2)
def test_a_forked_child_keeps_its_hands_off():
    rank, size = hvd.rank(), hvd.size()
    hvd.allreduce(np.ones(2))
    child = os.fork()
    if child == 0:
        assert hvd.rank() == rank and hvd.size() == size
        expect(
            hvd.HorovodInternalError,
            lambda: hvd.allreduce(np.ones(2)),
            "is a fork of one that runs the engine",
        )
        hvd.shutdown()
        sys.exit(0)  # with all exit handlers
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for _ in range(100):
        assert hvd.allreduce(np.ones(2), op=hvd.Sum).tolist() == [2, 2]


def _forks_after_an_engine_that_could_not_be_made():
    m_perturb = -6  # freed memory is overwritten, so that a use of it shows
    ctypes.CDLL(None).mallopt(m_perturb, 0xA5)
    core = native.load()
    make = core.Engine
    core.Engine = lambda config: make({**config, "launcher": "no descriptor"})
    expect(RuntimeError, hvd.init)
    core.Engine = make
    gc.collect()
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    hvd.init()
    assert hvd.allreduce(np.ones(2)).tolist() == [1, 1]


def test_a_fork_after_an_engine_that_could_not_be_made():
    run_to_the_end(1, _forks_after_an_engine_that_could_not_be_made, init=None)


@pytest.mark.ranks(2)
def test_ctrl_c_is_seen_while_waiting():
    if hvd.rank() == 0:
        began = time.monotonic()
        expect_ctrl_c(lambda: hvd.allreduce(np.ones(2), name="x"))
        assert time.monotonic() - began < 20
        tell("interrupted")
    else:
        await_told("interrupted")
        hvd.allreduce(np.ones(2), name="x")
    hvd.barrier()


def _rank_1_is_late():
    if hvd.rank() == 1:
        await_told("the warning has come")
    hvd.allreduce(np.ones(2), name="late")


def test_stall_warning_names_ranks_and_tensors(tmp_path):
    job = launch(3, _rank_1_is_late, folder=tmp_path, env={"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"})
    output = ""
    while "1: [allreduce.late]" not in output:
        line = job.stdout.readline()
        assert line, f"the job ended early:\n{output}"
        output += line
    (tmp_path / "told.the warning has come").touch()
    output += finish(job, 60)
    assert "submitted to be reduced, gathered or broadcasted by subset of ranks" in output
    assert re.search(r"1: \[allreduce\.late\]", output), output


def _stalls():
    if hvd.rank() == 0:
        expect(hvd.HorovodInternalError, lambda: hvd.allreduce(np.ones(2), name="late"), "stalled for longer")
    else:
        while not runtime.engine().stopped:
            time.sleep(0.1)


def test_stall_shutdown(tmp_path):
    env = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"}
    output = run_on_ranks(2, _stalls, env=env).output
    assert "is stalled for longer than 2 seconds. Will shutdown." in output


def _least_processor_time_of_5_idle_seconds():
    for _ in range(50):
        hs = [hvd.allreduce_async(np.ones(1000), name=f"n{i}") for i in range(20)]
        for h in hs:
            hvd.synchronize(h)
    least = 1.0
    for _ in range(4):  # a processor that others use as well may count more, but not each time
        before = time.process_time()
        time.sleep(5)
        least = min(least, time.process_time() - before)
        if least <= 0.010:
            break
    meet("idle")  # not over the engine: the other rank may still measure
    return least


@pytest.mark.timeout(200)
def test_idle_engine_sleeps():
    used = run_on_ranks(2, _least_processor_time_of_5_idle_seconds).results
    assert max(used) <= 0.010, used


@pytest.mark.ranks(2, env={"HOROVOD_BACKEND": "shn"}, init=None)
def test_unknown_backend():
    message = "horovod: backend 'shn' (from HOROVOD_BACKEND) is not installed. Did you mean 'shm'?"
    expect(BackendNotInstalled, hvd.init, message)


def _init_with_an_odd_rank(odd, setting):
    """(name of the error that init() raised or None, its text, seconds) where rank `odd` has another HOROVOD_BACKEND."""
    if os.environ["HOROVOD_RANK"] == odd:
        os.environ["HOROVOD_BACKEND"] = setting
    began = time.monotonic()
    try:
        hvd.init()
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - began
    return None, "", time.monotonic() - began


@pytest.mark.parametrize("odd", [0, 1])
def test_ranks_that_disagree_on_the_backend(odd):
    heard = run_on_ranks(3, _init_with_an_odd_rank, str(odd), "shn", init=None).results
    for rank, (error, _, seconds) in enumerate(heard):
        assert error == ("BackendNotInstalled" if rank == odd else "BackendDisagreement"), heard
        assert seconds < 20, "long before HOROVOD_START_TIMEOUT"
    text = heard[2][1]
    assert "ranks do not agree on backends." in text and f"rank {odd} (" in text, text


def test_ranks_that_say_the_same_backend_in_other_words_agree():
    heard = run_on_ranks(3, _init_with_an_odd_rank, "2", "cpu=shm", init=None)
    assert all(error is None for error, _, _ in heard.results), heard
    assert "Error" not in heard.output and "Backend" not in heard.output, heard.output
