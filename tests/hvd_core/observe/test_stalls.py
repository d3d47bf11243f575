"""Stall reports on living ranks: for each mistake of stall_programs.py the ranks, operations and lines."""

import inspect
import re

import pytest

import stall_programs as programs
from harness import run_on_ranks

QUICK = {
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "0.1",
    "HOROVOD_STALL_REPORT_JSON": programs.REPORTS,
    "HOROVOD_DYNAMIC_PROCESS_SETS": "1",
}
# For programs whose first report is about all ranks: on a busy machine these may be tenths of a second apart.
HEALTHY = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"}
HEAD = "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks"


def line(function, part):
    """'stall_programs.py:12' of the first line of the function that has the part."""
    lines, first = inspect.getsourcelines(function)
    return f"stall_programs.py:{first + next(i for i, text in enumerate(lines) if part in text)}"


def outputs(function, ranks=2, **env):
    return run_on_ranks(ranks, function, env={**QUICK, **env}).outputs


def first_report(function, ranks=2, **env):
    """The first report in rank 0's log."""
    texts = outputs(function, ranks, **env)
    for text in texts[:1]:
        assert HEAD in text, text
    return re.split(r"\n\[[^\n]*\] horovod ", texts[0])[0]


def check(report, *parts):
    for part in parts:
        assert part in report, f"{part!r} is not in:\n{report}"


def test_a_rank_that_sleeps():
    report = first_report(programs.a_rank_sleeps)
    check(report, "\n  1: [allreduce.a]", "waits for allreduce.a since", ") stands still at ")
    check(
        report,
        line(programs.a_rank_sleeps, 'name="a"'),
        line(programs.load_data, "sleep(0.5)") + " in load_data",
    )


def test_each_rank_logs_its_own_part_and_that_it_proceeds():
    whole, own = outputs(programs.a_rank_sleeps)
    check(whole, HEAD, "in load_data")
    check(own, "This rank has not submitted allreduce.a, for which rank 0 waits since", "in load_data")
    assert HEAD not in own and own.count("in load_data") == 1, own
    for text in (whole, own):
        check(text, "The operations that were stalled proceed again after", ": allreduce.a")


def test_a_rank_that_is_slow():
    report = first_report(programs.a_rank_is_slow)
    check(report, ") runs at ", "in a_rank_is_slow", "(busy for ")


def test_a_rank_inside_of_an_extension():
    check(
        first_report(programs.a_rank_is_inside_of_an_extension),
        "rank 1",
        "stands still in code that keeps the GIL",
    )


@pytest.mark.parametrize(
    ("program", "part", "inside"),
    [
        (programs.a_rank_waits_for_a_lock, "with lock:  # the main thread", ": with lock:"),
        (programs.a_rank_waits_for_a_thread, "thread.join()", "threading.py"),
        (programs.a_rank_waits_for_a_queue, "batches.get()", "queue.py"),
    ],
)
def test_a_rank_that_waits_for_something_else(program, part, inside):
    """The report names the line, and the function of a library in which the line waits."""
    check(
        first_report(program, **HEALTHY),
        "rank 1",
        ") stands still at ",
        line(program, f"    {part}\n"),
        inside,
    )


def test_a_held_lock_is_shown_with_the_thread_that_holds_it():
    report = first_report(programs.a_rank_waits_for_a_lock, **HEALTHY)
    check(report, "stands still at", ": with lock:", "Its thread", "in until_reported")


def test_names_that_differ():
    here = line(programs.names_differ, "loss.{rank}")
    report = first_report(programs.names_differ, **HEALTHY)
    check(report, "\n  0: [allreduce.loss.1]", "\n  1: [allreduce.loss.0]")
    assert report.count(f"{here} in names_differ (called at ") == 2, report


def test_a_call_under_a_condition_on_the_rank():
    report = first_report(programs.only_rank_0_calls, **HEALTHY)
    check(report, "rank 0 (", "waits for allreduce.checkpoint since", "waits for allreduce.a since")
    check(report, line(programs.only_rank_0_calls, '        hvd.allreduce(x(), name="checkpoint")\n'))


def test_a_call_in_a_helper_is_shown_with_its_caller():
    report = first_report(programs.a_helper_is_called_under_a_condition, **HEALTHY)
    helper = line(programs.mean, "hvd.allreduce")
    for part in ('        mean("checkpoint")', '    mean("loss")'):
        caller = line(programs.a_helper_is_called_under_a_condition, part)
        check(report, f"{caller} in a_helper_is_called_under_a_condition): ")
    assert report.count(f"{helper} in mean (called at ") == 2, report


@pytest.mark.parametrize(
    "program",
    [
        programs.a_helper_is_called_under_a_condition,
        programs.numbers_of_batches_differ,
        programs.a_parameter_of_one_rank,
        programs.orders_differ,
        programs.names_differ,
    ],
)
def test_no_cause_is_guessed(program):
    """It depends on the program whether ranks make fewer steps, call in another order, or give other names."""
    report = first_report(program, **HEALTHY)
    check(report, "It has not submitted ", "It submitted last: ")
    for guess in ("ause:", "same number of batches", "does it contain the rank", "another order"):
        assert guess not in report, report


def test_an_exception_that_was_swallowed():
    report = first_report(programs.an_exception_is_swallowed, **HEALTHY)
    check(report, "An operation of it failed", "and its program went on", "allreduce.step")


def test_a_join_that_waits():
    report = first_report(programs.a_rank_has_joined)
    check(report, "\n  0: [join]", "waits for join since", "in load_data")
    check(report, line(programs.a_rank_has_joined, "hvd.join()"))


def test_members_of_a_process_set_only():
    report = first_report(programs.members_of_a_set, ranks=3, **HEALTHY)
    check(report, "\n  2: [allreduce.a]", "(process set 1: ranks 0, 2)", "in load_data")
    assert "rank 1" not in report


def test_a_message_that_is_not_received():
    report = first_report(programs.a_message_is_not_received, ranks=3, **HEALTHY)
    here = line(programs.a_message_is_not_received, "hvd.send")
    check(report, "\n  1: [first message of ranks 0 and 1]", "in load_data", here)
    assert "rank 2" not in report


def test_a_process_set_that_is_not_added_everywhere():
    check(
        first_report(programs.a_set_is_added), "\n  1: [add_process_set]", "waits for add_process_set since"
    )


def test_a_rank_that_does_not_answer():
    report = first_report(programs.a_rank_is_stopped)
    check(report, "rank 1 does not answer: its process is stopped, by SIGSTOP")


def test_the_first_report_is_whole():
    missing = re.search(r"\n  1: \[(.*)\]", first_report(programs.half_of_a_known_batch, **HEALTHY))[1]
    assert missing == ", ".join(f"allreduce.g{i}" for i in range(4, 8))


def test_a_report_comes_again_at_growing_distances():
    text = outputs(programs.reported_again)[0]
    ages = [float(age) for age in re.findall(r"waits for allreduce.a since ([\d.]+) s", text)]
    assert len(ages) >= 3 and ages[1] >= 2 * ages[0] - 0.2 and ages[2] >= 2 * ages[1] - 0.2, ages
    check(text, "This was reported before, after")


def test_the_end_of_a_stalled_job_is_explained_on_every_rank():
    done = run_on_ranks(2, programs.the_job_ends, env={**QUICK, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0.3"})
    for text in done.results:
        check(
            text,
            "stalled for longer than HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
            "Rank 0 waited for allreduce.a",
        )
        check(
            text, "Rank 1 did not submit it: it", "in the_job_ends", line(programs.the_job_ends, 'name="a"')
        )
    check(done.outputs[0], "Will shutdown.")
