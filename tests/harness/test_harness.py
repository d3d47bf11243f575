"""The harness itself: one job for many checks, and the message of a failed check."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import hvd_core as hvd
from harness import RanksFailed, run_on_ranks
from harness.rank import expect, meet, needs


@pytest.mark.ranks(1, 2, 3)
def test_a_check_runs_on_every_rank():
    assert hvd.allgather(np.array([hvd.rank()])).tolist() == list(range(hvd.size()))


@pytest.mark.ranks(2, env={"HOROVOD_FUSION_THRESHOLD": "4096"})
@pytest.mark.parametrize("n", [1, 5])
def test_pytest_parameters_and_variables_reach_the_ranks(n):
    assert n in (1, 5) and os.environ["HOROVOD_FUSION_THRESHOLD"] == "4096"


def _pid(*values):
    meet("together")
    print("rank", hvd.rank(), "has", *values)
    print("and an error", file=sys.stderr)
    os.environ["LEFT"] = "behind"
    return os.getpid(), hvd.rank()


def test_the_same_processes_run_the_next_check():
    first = run_on_ranks(2, _pid, "a", 1)
    assert [rank for _, rank in first.results] == [0, 1]
    assert first.outputs == [f"rank {rank} has a 1\nand an error\n" for rank in range(2)]
    assert first.output == "".join(first.outputs)
    assert run_on_ranks(2, _pid).results == first.results


@pytest.mark.ranks(2)
def test_variables_do_not_outlive_a_check():
    assert "LEFT" not in os.environ


def _not_initialized():
    return expect(ValueError, hvd.rank, "Horovod has not been initialized")


def test_without_init():
    assert len(run_on_ranks(2, _not_initialized, init=None).results) == 2


def _one_fails(message):
    if hvd.rank() == 1:
        value = 41
        raise KeyError(message, value)
    hvd.barrier()


def test_a_failure_names_the_rank_the_error_and_the_variables():
    before = run_on_ranks(2, _pid).results
    with pytest.raises(RanksFailed) as failure:
        run_on_ranks(2, _one_fails, "a mistake")
    text = str(failure.value)
    head = "_one_fails on 2 ranks: rank 1 raised KeyError: ('a mistake', 41)\n--- rank 1 raised Traceback"
    assert (
        text.startswith(head)
        and "variables of _one_fails():\n    message = 'a mistake'\n    value = 41" in text
    )
    assert (
        "--- rank 0 raised horovod.common.exceptions.JobEndedError: " in text
    )  # one line of the consequence
    assert text.count("Traceback") == 1
    after = run_on_ranks(2, _pid).results
    assert not {pid for pid, _ in before} & {pid for pid, _ in after}, "a job that failed is not used again"


def _one_dies():
    if hvd.rank() == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    hvd.barrier()


def test_a_rank_that_dies_is_named():
    with pytest.raises(RanksFailed, match="rank 0 died"):
        run_on_ranks(2, _one_dies)


def _one_sleeps_in_a_function():
    if hvd.rank() == 1:
        time.sleep(1000)


def test_ranks_without_an_answer_in_time_show_their_stacks():
    run_on_ranks(2, _pid)  # the first call of a job takes longer
    with pytest.raises(RanksFailed) as failure:
        run_on_ranks(2, _one_sleeps_in_a_function, timeout=4)
    text = str(failure.value)
    assert "rank 1 gave no answer within 4 s" in text and "in _one_sleeps_in_a_function" in text


def _skips():
    pytest.skip("there is no such device")


def test_ranks_can_skip():
    with pytest.raises(pytest.skip.Exception, match="there is no such device"):
        run_on_ranks(2, _skips)


@needs(ranks=3)
def _of_three():
    raise AssertionError("two ranks run it")


@needs(False, "of another version")
def _of_another_version():
    raise AssertionError("it runs")


@needs(True, "of this version", ranks=2)
def _applies():
    return hvd.rank()


def test_a_check_says_what_it_needs():
    with pytest.raises(pytest.skip.Exception, match="it takes 3 ranks, and this job has 2"):
        run_on_ranks(2, _of_three)
    with pytest.raises(pytest.skip.Exception, match="of another version"):
        run_on_ranks(2, _of_another_version)
    assert run_on_ranks(2, _applies).results == [0, 1]


def _one_skips():
    if hvd.rank() == 1:
        pytest.skip("no reason of the others")


def test_ranks_that_do_not_agree_to_skip_have_failed():
    with pytest.raises(RanksFailed, match=r"rank 0 returned(.|\n)*rank 1 skipped: no reason of the others"):
        run_on_ranks(2, _one_skips)


def test_a_function_the_ranks_cannot_find_is_refused():
    with pytest.raises(ValueError, match="not a function of a module"):
        run_on_ranks(2, lambda: None)


def test_a_launcher_that_ends_at_once_is_shown():
    with pytest.raises(RanksFailed, match=r"0 of 1 ranks started.*exit code 3"):
        run_on_ranks(1, _pid, command=["sh", "-c", "echo no such launcher; exit 3"])


@pytest.mark.ranks(2, fresh=True)
def test_a_process_of_ones_own():
    sys.modules["dirt"] = sys  # no other test finds it


@pytest.mark.ranks(2)
def test_no_trace_of_it():
    assert "dirt" not in sys.modules


@pytest.mark.ranks(1)
@pytest.mark.ranks(3, id="again", env={"HOROVOD_FUSION_THRESHOLD": "4096"})
def test_several_marks():
    assert hvd.size() == (3 if os.environ.get("HOROVOD_FUSION_THRESHOLD") == "4096" else 1)


@pytest.mark.ranks(2)
def test_a_fixture_reaches_the_ranks(tmp_path):
    (tmp_path / str(hvd.rank())).touch()
    hvd.barrier()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.ranks(3)
def test_prints_its_process():
    print("process", os.getpid(), "is rank", hvd.rank())
    if "HVD_TEST_STOPS" in os.environ:
        breakpoint()
    hvd.barrier()


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_in_the_foreground(rank):
    """--rank-debug: pytest's own process is the rank, and its output is not collected."""
    done = _pytest(f"{__file__}::test_prints_its_process", "--rank-debug", str(rank), "-s")
    own = re.search(rf"rank {rank} is this process, (\d+)", done.stdout)
    assert own and f"process {own[1]} is rank {rank}\n" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("is rank") == 1 and " 1 passed" in done.stdout


def test_rank_debug_wants_one_test():
    done = _pytest(__file__, "--rank-debug", "0")
    assert done.returncode != 0 and "--rank-debug takes one test" in done.stdout + done.stderr


def _asserts():
    assert hvd.size() == 5 - 2


def test_a_failed_assertion_shows_its_values():
    with pytest.raises(RanksFailed) as failure:
        run_on_ranks(1, _asserts)
    assert "AssertionError: assert 1 == (5 - 2)" in str(failure.value)


def test_prints_of_a_test_that_passes_are_shown():
    for option, words in (("-s", "--- rank 2 printed:"), ("-rP", "Captured rank 2 call")):
        test = f"{__file__}::test_prints_its_process"
        done = _pytest(test, option)
        assert words in done.stdout and "is rank 2" in done.stdout, done.stdout + done.stderr


def _pytest(*words, **options):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
    where = Path(__file__).parents[2]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=where, **options)


def test_a_breakpoint_stops_the_rank_in_the_foreground_only():
    test = f"{__file__}::test_prints_its_process"
    stops = {**os.environ, "HVD_TEST_STOPS": "1"}
    done = _pytest(test, "--rank-debug", "1", input="p 'the rank is', hvd.rank()\nc\n", env=stops)
    assert "('the rank is', 1)" in done.stdout and " 1 passed" in done.stdout, done.stdout + done.stderr
