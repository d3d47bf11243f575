"""Jobs with a fault from a seed: each rank ends with success, or with an error that names the cause. See
fault_scenarios.py."""

import collections

import pytest

from fault_jobs import run, scenario, why_not

ALL = 320
# In `make test` a few whose ranks need no launcher, in `make test-all` all.
SAMPLE = [seed for seed in range(ALL) if scenario(seed).launcher == "forked"][:12]
GROUP = 20


def run_if_possible(seed):
    chosen = scenario(seed)
    reason = why_not(chosen)
    if not reason:
        run(chosen)
    return reason


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SAMPLE)
def test_sample(seed):
    reason = run_if_possible(seed)
    if reason:
        pytest.skip(reason)


@pytest.mark.slow
@pytest.mark.timeout(GROUP * 150)
@pytest.mark.parametrize("first", range(0, ALL, GROUP))
def test_all(first):
    reasons = [run_if_possible(seed) for seed in range(first, first + GROUP)]
    if all(reasons):
        pytest.skip(reasons[0])


def test_the_seeds_cover_every_fault_in_every_phase_and_operation():
    seen = [scenario(seed) for seed in range(ALL)]
    kinds = collections.Counter(one.kind for one in seen)
    for phase, faults in {
        "init": 3, "first use": 15, "steady": 15, "large": 6, "sets": 6, "shutdown": 3,
    }.items():  # fmt: skip
        assert len([kind for kind in kinds if kind[0] == phase]) == faults, (phase, kinds)
    assert len({(one.operation, one.fault) for one in seen}) > 80
    assert len({(one.launcher, one.backend) for one in seen}) > 20
