"""Ranks that die, leave, fork or are interrupted: the others hear of it at once, and nothing is left behind."""

import os
import re
import signal
import time

import launchers
import numpy as np
import psutil
import pytest
from launchers import left_in_shared_memory

import hvd_core as hvd
from harness import on_ranks
from jobs import run, start, write_program


def finish(job, seconds):
    """Waits for the launcher; returns (seconds it took, output)."""
    began = time.monotonic()
    output, _ = job.communicate(timeout=seconds)
    return time.monotonic() - began, output


def pids_of(job, count):
    """The pids that the ranks print as 'pid R N', once all have, and the output so far."""
    found, text = {}, ""
    while len(found) < count:
        line = job.stdout.readline()
        assert line, f"the job ended early:\n{text}"
        text += line
        if match := re.search(r"pid (\d+) (\d+)", line):
            found[int(match[1])] = int(match[2])
    return found, text


TRAIN = """
import multiprocessing
# Workers as a data loader forks them: they inherit the descriptors and outlive the rank that is killed.
context = multiprocessing.get_context("fork")
workers = [context.Process(target=time.sleep, args=(600,), daemon=True) for _ in range(2)]
for w in workers:
    w.start()
# The launcher ends who has not said within a second that it has heard; that may be too short on a busy machine.
signal.signal(signal.SIGTERM, signal.SIG_IGN)
hvd.barrier()
print("pid", rank, os.getpid(), flush=True)
step = 0
while True:
    try:
        hvd.allreduce(np.ones(100_000), name="grad")
        step += 1
    except hvd.HorovodInternalError as error:
        print("heard:", error, flush=True)
        expect(hvd.HorovodInternalError, lambda: hvd.allreduce(np.ones(2)))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise
"""


def killed(tmp_path, victim, ranks, env=None):
    before = set(os.listdir("/dev/shm"))
    job = start(ranks, write_program(tmp_path, TRAIN), env)
    pids, text = pids_of(job, ranks)
    family = [psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)]
    time.sleep(0.3)
    os.kill(pids[victim], signal.SIGKILL)
    took, more = finish(job, 60)
    output = text + more
    assert job.returncode != 0
    assert took < 20, f"{took:.1f} s until the job was over\n{output}"
    survivors = [line for line in output.splitlines() if "heard:" in line]
    assert len(survivors) == ranks - 1, output
    for line in survivors:
        assert re.search(rf"rank {victim} \(host .+, pid {pids[victim]}\) died", line) or env, line
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
    output = killed(tmp_path, victim=1, ranks=3, env={"HOROVOD_CONTROL_TRANSPORT": "tcp"})
    assert "rank 1" in output


def test_kill_of_all_ranks_leaves_nothing(tmp_path):
    before = set(os.listdir("/dev/shm"))
    job = start(3, write_program(tmp_path, TRAIN))
    pids, _ = pids_of(job, 3)
    family = psutil.Process(job.pid).children(recursive=True)
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    took, _ = finish(job, 60)
    assert took < 20 and job.returncode != 0
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive
    assert not left_in_shared_memory(before)


def test_an_exception_on_one_rank(tmp_path):
    output = run(
        2,
        tmp_path,
        """
        if rank == 1:
            time.sleep(0.2)
            raise SystemExit(3)
        text = expect(hvd.HorovodInternalError, lambda: hvd.allreduce(np.ones(3), name="alone"))
        print("heard:", text, flush=True)
        """,
        code=3,
    )
    # The launcher may end rank 0 before it has printed.
    assert "heard: Horovod has been shut down." in output or "Terminating remaining workers" in output


def test_a_rank_that_finishes_early(tmp_path):
    output = run(
        2,
        tmp_path,
        """
        total = hvd.allreduce(np.ones(3), op=hvd.Sum)
        if rank == 0:
            text = expect(hvd.HorovodInternalError, lambda: hvd.allreduce(np.ones(3), name="alone"))
            print("heard:", text, flush=True)
            expect(hvd.HorovodInternalError, lambda: hvd.allreduce(np.ones(3)), "Horovod has been shut down.")
        """,
    )
    assert "heard: Horovod has been shut down. This was caused by an exception on one of the ranks" in output


@on_ranks(2)
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


def test_a_forked_child_keeps_its_hands_off(tmp_path):
    output = run(
        2,
        tmp_path,
        """
        hvd.allreduce(np.ones(2))
        child = os.fork()
        if child == 0:
            assert hvd.rank() == rank and hvd.size() == size
            expect(hvd.HorovodInternalError, lambda: hvd.allreduce(np.ones(2)), "is a fork of one that runs the engine")
            hvd.shutdown()
            sys.exit(0)  # with all exit handlers
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        for _ in range(100):
            assert hvd.allreduce(np.ones(2), op=hvd.Sum).tolist() == [2, 2]
        print("fine", rank)
        """,
    )
    assert output.count("fine") == 2


def test_ctrl_c_is_seen_while_waiting(tmp_path):
    output = run(
        2,
        tmp_path,
        """
        if rank == 0:
            began = time.monotonic()
            expect_ctrl_c(lambda: hvd.allreduce(np.ones(2), name="x"), 0.5)
            assert time.monotonic() - began < 20
            print("interrupted")
            tell("interrupted")
        else:
            await_told("interrupted")
            hvd.allreduce(np.ones(2), name="x")
        hvd.barrier()
        """,
    )
    assert "interrupted" in output


def test_stall_warning_names_ranks_and_tensors(tmp_path):
    job = start(
        3,
        write_program(
            tmp_path,
            """
            if rank == 1:
                await_told("the warning has come")
            hvd.allreduce(np.ones(2), name="late")
            """,
        ),
        env={"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"},
    )
    output = ""
    while "1: [allreduce.late]" not in output:
        line = job.stdout.readline()
        assert line, f"the job ended early:\n{output}"
        output += line
    (tmp_path / "told.the warning has come").touch()
    output += launchers.finish(job, 60)
    assert "submitted to be reduced, gathered or broadcasted by subset of ranks" in output
    assert re.search(r"1: \[allreduce\.late\]", output), output


def test_stall_shutdown(tmp_path):
    output = run(
        2,
        tmp_path,
        """
        if rank == 0:
            expect(hvd.HorovodInternalError, lambda: hvd.allreduce(np.ones(2), name="late"), "stalled for longer")
        else:
            while not runtime.engine().stopped:
                time.sleep(0.1)
        """,
        env={"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2"},
    )
    assert "is stalled for longer than 2 seconds. Will shutdown." in output


@pytest.mark.timeout(200)
def test_idle_engine_sleeps(tmp_path):
    output = run(
        2,
        tmp_path,
        """
        for step in range(50):
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
        print("idle", least)
        meet("idle")  # not over the engine: the other may still look
        """,
    )
    used = [float(x) for x in re.findall(r"idle ([\d.e-]+)", output)]
    assert len(used) == 2 and max(used) <= 0.010, used


def test_unknown_backend(tmp_path):
    output = run(2, tmp_path, "", env={"HOROVOD_BACKEND": "shn"}, code=1)
    assert "horovod: backend 'shn' (from HOROVOD_BACKEND) is not installed. Did you mean 'shm'?" in output


@pytest.mark.timeout(240)
def test_ranks_that_disagree_on_the_backend(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        """
import os, sys, time
rank = os.environ["HOROVOD_RANK"]
if rank == os.environ["ODD"]:
    os.environ["HOROVOD_BACKEND"] = os.environ["SAYS"]
import hvd_core as hvd
began = time.monotonic()
try:
    hvd.init()
except Exception as error:
    print(rank, type(error).__name__, str(error), f"after {time.monotonic() - began:.0f} s", flush=True)
# Nobody goes before all have their answer.
open(os.path.join(os.environ["FOLDER"], rank), "w").close()
end = time.monotonic() + 40
while len(os.listdir(os.environ["FOLDER"])) < 3 and time.monotonic() < end:
    time.sleep(0.01)
"""
    )
    for odd, says, own in (
        ("1", "shn", "BackendNotInstalled"),
        ("0", "shn", "BackendNotInstalled"),
    ):
        folder = tmp_path / f"odd {odd}"
        folder.mkdir()
        job = start(3, program, {"ODD": odd, "SAYS": says, "FOLDER": str(folder)})
        output, _ = job.communicate(timeout=60)
        for rank in "012":
            line = next(line for line in output.splitlines() if f"[{rank}]<stdout>:{rank} " in line)
            assert (own if rank == odd else "BackendDisagreement") in line, output
        assert "ranks do not agree on backends." in output and f"rank {odd} (" in output, output
        # Long before HOROVOD_START_TIMEOUT.
        assert all(int(seconds) < 20 for seconds in re.findall(r"after (\d+) s", output)), output
    # Said on one rank only, but the same choice: no reason to stop.
    (tmp_path / "same").mkdir()
    same = {"ODD": "2", "SAYS": "cpu=shm", "FOLDER": str(tmp_path / "same")}
    output, _ = start(3, program, same).communicate(timeout=60)
    assert "Error" not in output and "Backend" not in output, output
