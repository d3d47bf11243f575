"""Rank 0 finds stalls, so the other ranks look after rank 0: they report that it does not answer, and end the job."""

import re

import pytest

import silent_root_programs as programs
from harness import run_on_ranks

QUICK = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "0.2", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "1"}


@pytest.mark.parametrize("program", [programs.before_an_operation, programs.while_the_others_join])
def test_rank_0_that_is_stopped_is_named_on_every_rank(program):
    done = run_on_ranks(3, program, env=QUICK)
    for root, text in done.results:
        assert f"rank 0 (host {host_of(text)}, pid {root}), which decides what the ranks carry out" in text
        assert f"its process is stopped, by SIGSTOP or Ctrl-Z (`kill -CONT {root}` lets it go on)" in text
        assert "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS" in text
        assert re.search(r"rank [12] \(host .*\) waits for (allreduce\.a|join) since [\d.]+ s", text), text
    assert any("silent_root_programs.py:" in text for _, text in done.results)
    assert any("horovod WARNING: rank 0 (host" in text for text in done.outputs[1:]), done.outputs


def test_a_leader_that_is_stopped_is_named_behind_it():
    env = {**QUICK, "HOROVOD_SIMULATED_HOSTS": "0,1,1"}
    done = run_on_ranks(3, programs.of_a_leader, env=env)
    leader, text = done.results[2]
    told = rf"rank 1 \(host .*, pid {leader}\), which passes messages on to rank 0 \(host .*\), has not answered for"
    assert re.search(told, text), text
    assert f"its process is stopped, by SIGSTOP or Ctrl-Z (`kill -CONT {leader}` lets it go on)" in text
    # Rank 0 ends the job itself, or hears first that rank 2 has.
    ended = "Rank 1 did not submit it: it does not answer" in done.results[0][1]
    assert ended or re.search(told, done.results[0][1]), done.results[0]


def test_rank_0_that_goes_on_is_told_too():
    done = run_on_ranks(3, programs.and_goes_on, env={"HOROVOD_STALL_CHECK_TIME_SECONDS": "0.2"})
    assert done.results == [[1.0] * 4] * 3
    assert re.search(r"horovod WARNING: rank 0 \(host .*\) answers again, after [\d.]+ s", done.outputs[1]), (
        done.outputs
    )


def host_of(text):
    return re.search(r"rank 0 \(host ([^,]+), pid", text)[1]
