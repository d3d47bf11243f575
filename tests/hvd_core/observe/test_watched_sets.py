"""What a page shows of process sets, and of ranks that do not use the same names."""

import watched_sets as sets
from harness import run_on_ranks

_DYNAMIC = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}


def test_stragglers_are_found_though_a_rank_has_names_of_its_own():
    for seen in run_on_ranks(2, sets.late_steps_after_names_of_one_rank, env=_DYNAMIC).results:
        ((last, times, behind),) = seen["stragglers"]
        assert (last, behind > 0) == (1, True)
        assert times >= 6


def test_a_process_set_that_was_added_or_removed_is_not_pending():
    for pending, events in run_on_ranks(2, sets.changed_sets, env=_DYNAMIC).results:
        assert pending == [0, 0]
        assert events == [[], []]


def test_a_stall_names_members_of_the_set_that_have_not_submitted():
    stalls = run_on_ranks(3, sets.stalls_of_three_ranks, env=_DYNAMIC).results[0]
    assert stalls.pop("allreduce.in the set") == ([0], [1])
    assert len(stalls) == 7
    assert set(map(str, stalls.values())) == {"([0, 2], [1])"}
