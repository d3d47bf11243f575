"""The checks of ranks_tf_*.py on 1, 2 and 3 ranks. One job each, started by the first test that needs it."""

import functools

import pytest

pytest.importorskip("tensorflow")

from tf_launch import Report, checks_of

OPS = ["ranks_tf_ops"]
ABOVE = [
    "ranks_tf_reductions",
    "ranks_tf_functions",
    "ranks_tf_tape_corners",
    "ranks_tf_optimizer_corners",
]
# What does not depend on how many ranks there are.
ONCE = ["ranks_tf_tape", "ranks_tf_optimizer", "ranks_tf_sync_batch_norm"]
JOBS = {
    1: [*OPS, "ranks_tf_reductions", "ranks_tf_functions", "ranks_tf_tape"],
    2: [*OPS, *ABOVE, *ONCE],
    3: [*OPS, *ABOVE],
}
CASES = [
    (ranks, module, check)
    for ranks, modules in JOBS.items()
    for module in modules
    for check in checks_of(module)
]


@functools.cache
def report(ranks):
    return Report(JOBS[ranks], ranks, timeout=280)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("ranks", "module", "check"), CASES, ids=["-".join(map(str, case)) for case in CASES]
)
def test_check(ranks, module, check):
    report(ranks).verify(module, check)
