"""The agreement protocol, checked: every interleaving of small programs ends as it should (docs/protocol.md).

The broken variants are checked too, because a checker that finds no mistake in them would be useless.
"""

from __future__ import annotations

import pytest

from checker import explore, report
from programs import Program, random_messages, random_program
from protocol import Switches

A, B = "A", "B"


def submit(*names: str, sig: str = "f32", in_set: str = "w") -> list[tuple]:
    return [("submit", in_set, name, sig) for name in names]


def wait(*names: str, in_set: str = "w") -> list[tuple]:
    return [("wait", in_set, name) for name in names]


def fail(*names: str) -> list[tuple]:
    return [("fail", "w", name) for name in names]


def opened(*ranks: int) -> list[tuple]:
    return [("open", "p" + "".join(map(str, ranks)), ranks)]


def message(*ranks: int) -> list[tuple]:
    """The first message between two ranks, and on either the wait for it."""
    return (
        opened(*ranks) + submit(A, in_set=f"p{ranks[0]}{ranks[1]}") + wait(A, in_set=f"p{ranks[0]}{ranks[1]}")
    )


JOIN, LEAVE, ABORT = [("join",)], [("leave",)], [("abort",)]
WARM = submit(A, B) + wait(A, B)  # after it {A, B} can be a known batch
STEP = submit(A) + wait(A)

# One rank waits for B before it submits A, while another has arrived at {A, B}: the batch must be dissolved.
INVERSION = [WARM + submit(A, B) + wait(A, B), WARM + submit(B) + wait(B) + submit(A) + wait(A)]
PARTIAL = [WARM + submit(A) + wait(A), WARM + submit(A, B) + wait(A)]

NASTY: dict[str, Program] = {
    "order_inversion_with_wait": INVERSION,
    "partial_batch_and_wait": PARTIAL,
    "partial_batch_and_no_wait": [WARM + submit(A), WARM + submit(A) + wait(A)],
    "partial_batch_then_a_message_from_elsewhere": [
        WARM + submit(A) + [("await", 1)] + submit(B) + wait(A, B),
        WARM + submit(A) + wait(A) + [("signal", 1)] + submit(B) + wait(B),
    ],
    "dissolve_races_with_arrive": [
        WARM + submit(A, B) + wait(A, B),
        WARM + submit(B) + [("poll", "w", B)] + submit(A) + wait(A, B),
    ],
    "dissolve_races_with_the_next_generation": [
        WARM + submit(A, B) + wait(A, B) + submit(A) + wait(A) + submit(B) + wait(B),
        WARM + submit(A, B) + wait(B, A) + submit(B, A) + wait(A, B),
    ],
    "three_ranks_come_apart": [
        WARM + submit(A, B) + wait(A, B),
        WARM + submit(B, A) + wait(B, A),
        WARM + submit(B) + wait(B) + submit(A) + wait(A),
    ],
    "a_definition_while_an_arrival_is_under_way": [
        WARM + submit(A, B) + submit("C") + wait(A, B, "C"),
        WARM + submit("C") + submit(B) + wait(B) + submit(A) + wait(A, "C"),
    ],
    "join_races_with_arrive": [WARM + submit(A, B) + wait(A, B) + JOIN, WARM + JOIN],
    "join_with_a_part_held": [WARM + submit(A) + JOIN, WARM + submit(A, B) + wait(A, B) + JOIN],
    "join_again_and_again": [STEP + JOIN + STEP + JOIN + STEP, JOIN + STEP + STEP + JOIN + STEP],
    "join_behind_a_poison": [
        submit(A) + fail(A) + JOIN + submit(A) + wait(A),
        submit(A) + wait(A) + submit(A) + wait(A) + JOIN + submit(A) + wait(A),
    ],
    "three_ranks_join": [WARM + submit(A, B) + wait(B) + JOIN, WARM + submit(B) + JOIN, WARM + JOIN],
    "all_fail_then_all_submit": [fail(A) + STEP] * 2,
    "duplicate_everywhere_then_again": [submit(A) + fail(A) + wait(A) + fail(A) + STEP] * 2,
    "duplicate_on_one_rank": [submit(A) + fail(A) + wait(A) + STEP, STEP + STEP + STEP],
    "failed_twice_on_one_rank": [fail(A) + fail(A) + STEP, STEP + STEP + STEP],
    "poison_races_with_the_definition": [STEP + STEP + STEP, submit(A) + fail(A) + wait(A) + STEP],
    "poison_after_arrival": [WARM + submit(A, B) + fail(A) + wait(A, B) + STEP, WARM + WARM + STEP + STEP],
    "poison_of_a_member_while_nothing_is_held": [WARM + fail(A), WARM + submit(A, B) + wait(A)],
    "poison_on_three_ranks": [fail(A) + STEP, fail(A) + STEP, STEP + STEP],
    "mismatch_then_success": [
        submit(A) + wait(A) + STEP,
        submit(A, sig="i64") + wait(A) + STEP,
    ],
    "mismatch_with_a_known_batch": [
        WARM + submit(A, B) + wait(A, B) + STEP,
        WARM + submit(A, sig="i64") + submit(B) + wait(A, B) + STEP,
    ],
    "a_set_of_one_rank": [
        [("add", "s", (1,))] + STEP + [("end", "s")],
        [("add", "s", (1,))] + submit(A, in_set="s") + STEP + wait(A, in_set="s") + [("end", "s")],
    ],
    "sets_in_different_orders": [
        [("add", "s", (0, 1))] + submit(A, in_set="s") + wait(A, in_set="s") + STEP,
        [("add", "s", (0, 1))] + STEP + submit(A, in_set="s") + wait(A, in_set="s"),
    ],
    "set_ends_with_requests_pending": [
        [("add", "s", (0, 1))] + submit(A, B, in_set="s") + [("end", "s")] + wait(A, B, in_set="s"),
        [("add", "s", (0, 1))] + submit(A, in_set="s") + [("end", "s")],
    ],
    "set_ends_with_a_part_held": [
        [("add", "s", (0, 1))]
        + (submit(A, B, in_set="s") + wait(A, B, in_set="s"))
        + submit(A, in_set="s")
        + [("end", "s")]
    ]
    * 2,
    "set_ends_while_a_batch_of_it_is_formed": [
        [("add", "s", (0, 1))] + submit(A, in_set="s") + [("end", "s")] + JOIN
    ]
    * 2,
    "a_message_of_two_ranks": [message(0, 1) + STEP, message(0, 1) + STEP, STEP],
    "a_message_in_another_order": [
        opened(0, 1) + submit(A, in_set="p01") + STEP + wait(A, in_set="p01"),
        STEP + message(0, 1),
        STEP,
    ],
    "messages_around_a_ring": [
        opened(0, 1) + submit(A, in_set="p01") + message(0, 2) + wait(A, in_set="p01"),
        opened(1, 2) + submit(A, in_set="p12") + message(0, 1) + wait(A, in_set="p12"),
        opened(0, 2) + submit(A, in_set="p02") + message(1, 2) + wait(A, in_set="p02"),
    ],
    "two_ranks_end_their_set": [message(0, 1) + [("shut", "p01", (0, 1))] + STEP] * 2 + [STEP],
    "two_ranks_end_their_set_with_a_message_pending": [
        opened(0, 1) + submit(A, in_set="p01") + [("shut", "p01", (0, 1))] + wait(A, in_set="p01"),
        message(0, 1)[:1] + [("shut", "p01", (0, 1))],
        STEP,
    ],
    "a_message_for_a_rank_that_has_joined": [message(0, 1) + JOIN, JOIN, JOIN],
    "a_rank_leaves_before_a_message": [message(0, 1), LEAVE, STEP],
    "leave_while_others_wait": [STEP + STEP, STEP + LEAVE],
    "leave_with_a_part_held": [WARM + submit(A) + LEAVE, WARM + submit(A) + wait(A) + LEAVE],
    "leave_while_others_have_joined": [STEP + JOIN, STEP + LEAVE],
    "all_leave": [WARM + LEAVE, WARM + LEAVE],
    "abort_in_the_middle": [WARM + submit(A, B) + wait(A, B), WARM + submit(A) + ABORT],
    "two_aborts": [STEP + ABORT, STEP + ABORT, STEP + STEP],
}


def passes(program: Program, switches: Switches = Switches(), **how) -> int:
    outcome = explore(program, switches, **how)
    assert outcome.error is None, report(program, outcome)
    assert outcome.complete, "too large to walk completely"
    return outcome.states


@pytest.mark.parametrize("name", NASTY)
def test_nasty_programs(name: str) -> None:
    for coupled in (False, True):
        passes(NASTY[name], coupled=coupled)


@pytest.mark.parametrize(
    "seed", [0, 25, 50, *(pytest.param(s, marks=pytest.mark.slow) for s in range(75, 300, 25))]
)
def test_random_programs(seed: int) -> None:
    walked = 0
    for s in range(seed, seed + 25):
        program = random_program(s)
        outcome = explore(program, coupled=s % 4 == 0, limit=12_000)
        assert outcome.error is None, f"seed {s}: " + report(program, outcome)
        walked += outcome.complete
    assert walked >= 21, "too few programs were small enough to walk completely"


@pytest.mark.parametrize(
    "seeds", [range(12), pytest.param(range(12, 60), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_random_messages(seeds: range) -> None:
    walked = 0
    for seed in seeds:
        program = random_messages(seed)
        for coupled in (False, True):
            outcome = explore(program, coupled=coupled, limit=10_000)
            assert outcome.error is None, f"seed {seed}: " + report(program, outcome)
            walked += outcome.complete
    assert walked >= len(seeds), "too few programs were small enough to walk completely"


@pytest.mark.parametrize(
    "seeds", [range(20), pytest.param(range(20, 60), marks=pytest.mark.slow)], ids=["few", "many"]
)
@pytest.mark.parametrize(
    "switches",
    [Switches(merge=False), Switches(root_dissolves=True), Switches(repeats=2), Switches(smallest_known=2)],
)
def test_parameters_of_known_batches(switches: Switches, seeds: range) -> None:
    for name in ("order_inversion_with_wait", "dissolve_races_with_arrive", "join_with_a_part_held"):
        passes(NASTY[name], switches)
    for seed in seeds:
        program = random_program(seed)
        outcome = explore(program, switches, limit=8_000)
        assert outcome.error is None, f"seed {seed}: " + report(program, outcome)


BROKEN = {
    "start_on_guess": (Switches(start_on_guess=True), INVERSION, "deadlock"),
    "no_dissolve": (Switches(no_dissolve=True), PARTIAL, "deadlock"),
    "replace_poison": (Switches(replace_poison=True), [fail(A) + STEP] * 2, "deadlock"),
    "define_over_poison": (Switches(define_over_poison=True), NASTY["poison_races_with_the_definition"], ""),
    "keep_on_poison": (Switches(keep_on_poison=True), NASTY["poison_races_with_the_definition"], ""),
    "all_ranks_ask": (Switches(all_ranks_ask=True), NASTY["a_message_of_two_ranks"], "deadlock"),
    "no_waiting_for_a_set": (
        Switches(no_waiting_for_a_set=True),
        NASTY["a_message_of_two_ranks"],
        "deadlock",
    ),
    "reuse_early": (
        Switches(reuse_early=True),
        NASTY["a_definition_while_an_arrival_is_under_way"],
        "arrived at an earlier 0",
    ),
    # Nodes that merge must send all held messages before these, and send these on at once.
    "overtake_poison": (Switches(overtaken=("POISON",)), [fail(A) + STEP, submit(A) + wait(A) + STEP], ""),
    "overtake_ask": (Switches(overtaken=("ASK",)), PARTIAL, "a live batch"),
    "overtake_join": (Switches(overtaken=("JOIN",)), [submit(A) + JOIN, JOIN], "more data at JOINED"),
    "overtake_end": (Switches(overtaken=("SETS",)), NASTY["set_ends_with_requests_pending"], "ended"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_protocol_is_found_out(name: str) -> None:
    switches, program, what = BROKEN[name]
    outcome = explore(program, switches)
    assert outcome.error is not None and what in outcome.error
    print(f"\n{name}: {report(program, outcome)}")
    passes(program)


def test_a_program_that_stalls_by_its_own_fault_is_no_deadlock() -> None:
    passes([STEP + STEP, STEP])


# Mistakes with which the reduced space is compared in every run; the others are slow tests.
COMPARED = ("", "start_on_guess", "define_over_poison", "overtake_join")


@pytest.mark.parametrize(
    "mistake",
    [*COMPARED, *(pytest.param(m, marks=pytest.mark.slow) for m in BROKEN if m not in COMPARED)],
)
def test_reduction_loses_nothing(mistake: str) -> None:
    """The whole space and the reduced one agree on whether there is a mistake."""
    switches = BROKEN[mistake][0] if mistake else Switches()
    agreed = 0
    for seed in range(400):
        program = random_program(seed)
        if sum(map(len, program)) > 9:
            continue
        whole = explore(program, switches, reduced=False, limit=6_000)
        reduced = explore(program, switches, limit=6_000)
        if whole.complete and reduced.complete:
            assert (whole.error is None) == (reduced.error is None), f"seed {seed}: " + report(program, whole)
            agreed += 1
    assert agreed >= 20
