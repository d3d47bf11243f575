"""Jobs with a fault from a seed: each rank ends with success, or with an error that names the cause. See scenarios.py."""

import collections

import pytest

from running import run, scenario

# In `make test` a few, in `make test-all` all.
SAMPLE, ALL = 12, 320
GROUP = 20


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(SAMPLE))
def test_sample(seed):
    run(scenario(seed))


@pytest.mark.slow
@pytest.mark.timeout(GROUP * 150)
@pytest.mark.parametrize("first", range(SAMPLE, ALL, GROUP))
def test_all(first):
    for seed in range(first, min(first + GROUP, ALL)):
        run(scenario(seed))


def test_the_seeds_cover_every_fault_in_every_phase_and_operation():
    seen = [scenario(seed) for seed in range(ALL)]
    kinds = collections.Counter(one.kind for one in seen)
    for phase, faults in {
        "init": 3, "first use": 15, "steady": 15, "large": 6, "sets": 6, "shutdown": 3,
    }.items():  # fmt: skip
        assert len([kind for kind in kinds if kind[0] == phase]) == faults, (phase, kinds)
    assert len({(one.operation, one.fault) for one in seen}) > 80
