"""The rank that the launcher names: the one that failed first, not one that failed because of it."""

import atexit
import os
import time
from types import SimpleNamespace

import numpy as np
import pytest

import hvd_core as hvd
from harness import run_to_the_end
from harness.rank import ignore_the_launcher
from horovod._runner.job import Job, Outcome
from horovod._runner.output import Output

OTHERS, CULPRIT = (0, 1), 2


def outcome(codes, *secondary, late=()):
    made = Outcome(dict(codes), [end for end in codes if end[1] and end not in late], list(late))
    made.decide(set(secondary))
    return made


def test_a_secondary_failure_is_not_named():
    assert outcome([(0, 1), (2, 137), (1, 1)], 0, 1).first_failed == (2, 137)
    assert outcome([(0, 1), (1, 1)]).first_failed == (0, 1)
    assert outcome([(0, 0), (1, 0)]).first_failed is None
    # It was still on its way out when the others were ended.
    assert outcome([(0, 1), (1, 1), (2, 3)], 0, 1, late=[(2, 3)]).first_failed == (2, 3)


def test_a_rank_that_left_without_an_error_is_mentioned():
    made = outcome([(2, 0), (1, 1), (0, 1)], 0, 1)
    assert made.first_failed == (1, 1)
    assert "Process 2 had ended before, with exit code 0" in made.error_text()
    assert "had ended before" not in outcome([(1, 1), (2, 0), (0, 1)], 0, 1).error_text()


@pytest.mark.parametrize("code", [-15, -9, 143, 137])
def test_an_answer_to_the_launcher_s_signal_is_no_failure(code, capfd):
    """As a signal, or as the exit code that a shell around the rank makes of it."""
    job = Job([], Output(2))
    event = {"event": "exit", "rank": 1, "code": code, "asked": True}
    job.event(SimpleNamespace(host=None), event)
    assert job._outcome.codes == {1: code} and job._outcome.late == []
    job.event(SimpleNamespace(host=None), {**event, "rank": 0, "code": 3})
    assert job._outcome.late == [(0, 3)]


def gone(pid):
    try:
        os.kill(pid, 0)
    except OSError:
        return True
    return False


def fail_and_end_after_the_others():
    pids = hvd._runtime.runtime.world().pids

    def see_the_others_end():
        end = time.monotonic() + 60
        while not all(gone(pids[rank]) for rank in OTHERS) and time.monotonic() < end:
            time.sleep(0.01)

    atexit.register(see_the_others_end)
    raise ValueError("the real cause")


def fail_last_although_first():
    """The culprit's process ends when those of the others, which fail because of it, have ended already."""
    ignore_the_launcher()
    if hvd.rank() == CULPRIT:
        fail_and_end_after_the_others()
    for _ in range(10**6):
        hvd.allreduce(np.ones(1), name="again")


def test_survivors_that_end_before_it_are_not_named():
    text = run_to_the_end(3, fail_last_although_first, code=1)
    assert f"Process name: {CULPRIT}\n" in text
    assert "the real cause" in text


def fail_last_while_others_have_joined():
    """As above, and the others have no more data: they wait in join()."""
    ignore_the_launcher()
    hvd.allreduce(np.ones(1), name="first")
    if hvd.rank() == CULPRIT:
        fail_and_end_after_the_others()
    hvd.join()


def test_survivors_in_a_join_are_not_named():
    text = run_to_the_end(3, fail_last_while_others_have_joined, code=1)
    assert f"Process name: {CULPRIT}\n" in text
    assert "the real cause" in text


def fail_after_the_end():
    """All ranks end the job in good order. Then a program fails, for a reason of its own, when another one has ended."""
    ignore_the_launcher()
    rank, pid = hvd.rank(), hvd._runtime.runtime.world().pids[0]
    hvd.shutdown()
    if rank == 1:
        end = time.monotonic() + 60
        while not gone(pid) and time.monotonic() < end:
            time.sleep(0.01)
        raise ValueError("after the job")


def test_a_rank_that_fails_after_an_orderly_end_needed_no_other():
    text = run_to_the_end(2, fail_after_the_end, code=1)
    assert "Process name: 1\n" in text
    assert "had ended before" not in text
