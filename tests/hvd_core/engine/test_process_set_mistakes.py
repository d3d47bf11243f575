"""Process sets at bad moments and with mistakes of one rank: every rank hears of it, and nothing waits for ever."""

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import harness.rank
import hvd_core as hvd
from harness import run_to_the_end
from harness.rank import await_told, expect, tell
from hvd_core._runtime import runtime

DYNAMIC = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}


@pytest.mark.ranks(2, env=DYNAMIC, timeout=200)
def test_submissions_that_cross_the_end_of_their_set_end():
    """One thread submits while another ends the set: what comes too late to be agreed on fails."""
    rank = hvd.rank()
    engine = runtime.engine()
    for _ in range(60):
        ps = hvd.add_process_set([0])
        number, handles, arrays = ps.process_set_id, [], []
        started = threading.Event()

        def submit():
            started.set()
            try:
                for i in range(5000):
                    arrays.append(np.ones(1))
                    handles.append(engine.allreduce(arrays[-1], arrays[-1], f"x{i}", 0, 1.0, 1.0, number))
            except ValueError as error:
                assert "has not been registered" in str(error)

        if rank == 0:
            thread = threading.Thread(target=submit)
            thread.start()
            started.wait()
        hvd.remove_process_set(ps)
        if rank == 0:
            thread.join()
            end = time.monotonic() + 40
            for handle in handles:
                while not engine.poll(handle):
                    assert time.monotonic() < end, "a submission neither completes nor fails"
                engine.release(handle)
    hvd.barrier()


@pytest.mark.ranks(3, env=DYNAMIC)
def test_one_rank_that_fails_alone_fails_the_others_too():
    """Each rank in turn makes a mistake that only it can see; the others must not wait for it."""
    rank = hvd.rank()
    pair = hvd.add_process_set([0, 1])
    mistakes = [
        (ValueError, lambda: hvd.add_process_set(["a"]), "must be integers"),
        (ValueError, lambda: hvd.add_process_set(7), "ProcessSet is made from a list"),
        (ValueError, lambda: hvd.add_process_set([2**40]), "not one of the ranks of this job"),
    ]
    for turn, (kind, call, part) in enumerate(mistakes):
        if rank == turn % 3:
            expect(kind, call, part)
        else:
            expect(hvd.HorovodInternalError, lambda: hvd.add_process_set([1]), f"rank {turn % 3}: ", part)
    os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "0" if rank == 1 else "1"
    for call in (lambda: hvd.add_process_set([1]), lambda: hvd.remove_process_set(pair)):
        if rank == 1:
            expect(ValueError, call, "HOROVOD_DYNAMIC_PROCESS_SETS=1")
        else:
            expect(hvd.HorovodInternalError, call, "rank 1: ", "HOROVOD_DYNAMIC_PROCESS_SETS=1")
    os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
    assert hvd.add_process_set([1]).process_set_id == 2
    other = hvd.add_process_set([0, 2])
    if rank == 2:
        expect(AttributeError, lambda: hvd.remove_process_set("a text"), "process_set_id")
    else:
        expect(hvd.HorovodInternalError, lambda: hvd.remove_process_set(other), "rank 2: ", "process_set_id")
    hvd.barrier()
    again = hvd.add_process_set([0])
    if rank == 2:
        again = hvd.ProcessSet([0])
        again.process_set_id = 77
        expect(ValueError, lambda: hvd.remove_process_set(again), "does not exist", "77")
    else:
        expect(hvd.HorovodInternalError, lambda: hvd.remove_process_set(again), "rank 2: ", "77")
    hvd.barrier()


@pytest.mark.ranks(3, timeout=200)
def test_init_with_different_sets_fails_everywhere_and_can_be_called_again():
    rank = hvd.rank()
    hvd.shutdown()

    def call():
        return hvd.init(process_sets=[[0, 1]] if rank == 1 else [[1, 0], [2]])

    expect(
        ValueError,
        call,
        "do not agree on init(process_sets=...)",
        "ranks 0, 2",
        ": [0, 1], [2]; rank 1",
        ": [0, 1]",
    )
    expect(
        ValueError,
        lambda: hvd.init(process_sets=None if rank == 2 else [[0]]),
        "ranks 0-1",
        ": [0]; rank 2",
        ": none",
    )
    bad = hvd.init if rank else lambda: hvd.init(process_sets=[[0.5]])
    expect(ValueError, bad, *(["init(process_sets=...)", "failed: "] if rank else []), "must be integers")
    assert not hvd.is_initialized()
    both = [hvd.ProcessSet([0, 1]), hvd.ProcessSet([2])]
    hvd.init(process_sets=both)
    assert [s.process_set_id for s in both] == [1, 2]
    hvd.barrier()


@pytest.mark.ranks(2, env=DYNAMIC)
def test_all_objects_of_an_ended_set_are_invalid():
    first, second = hvd.ProcessSet([1]), hvd.ProcessSet([1])
    hvd.init(process_sets=[first])
    hvd.init(process_sets=[second])
    assert first.process_set_id == second.process_set_id == 1
    hvd.remove_process_set(second)
    assert hvd.add_process_set([0]).process_set_id == 1
    assert first.process_set_id is None  # else it would stand for ranks that are not its own


def _a_member_dies():
    if os.environ["HOROVOD_RANK"] == "1" and (member := os.fork()):
        os.waitpid(member, 0)
        os._exit(0)  # the launcher must not hear of the death: it would end the other ranks
    hvd.init()
    rank = hvd.rank()
    if rank == 1:
        runtime.engine().add_process_set([0, 1])
        time.sleep(1)  # the request goes its way
        go = harness.rank.folder / "told.the set is there"
        subprocess.Popen(
            ["sh", "-c", f"while [ ! -e '{go}' ]; do sleep 0.1; done; sleep 2; kill -KILL {os.getpid()}"]
        )
        Path(harness.rank.folder, "pid").write_text(str(os.getpid()))
        tell("pid")
        os.kill(os.getpid(), signal.SIGSTOP)  # it never goes on
    await_told("pid")
    stopped = Path("/proc", Path(harness.rank.folder, "pid").read_text(), "stat")
    while stopped.read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)
    if rank == 2:
        hvd.add_process_set([0, 1])
        tell("the set is there")
        hvd.shutdown()
    else:
        try:
            hvd.add_process_set([0, 1])
        except (ValueError, hvd.HorovodInternalError):
            assert runtime.engine().stopped
        else:
            raise AssertionError("a set with a dead member was made")


def test_a_member_that_dies_after_the_end_was_agreed_is_not_waited_for(tmp_path):
    """Its set is still being made on another rank when the job has ended for all; no abort goes round any more."""
    env = {**DYNAMIC, "HOROVOD_START_TIMEOUT": "300"}
    run_to_the_end(3, _a_member_dies, folder=tmp_path, init=None, env=env, timeout=120)
