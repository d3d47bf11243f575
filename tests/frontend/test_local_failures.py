"""Wrong arguments on one rank, for each public function of each front end: see ranks_wrong_arguments.py.

A sample is part of `make test`; all cases are `slow`.
"""

import pytest

from harness import run_on_ranks
from harness.checks import run_with
from harness.installed import need

FUZZ = "frontend/ranks_wrong_arguments.py::fuzz"
SAMPLES = {"numpy": 120, "torch": 120, "tensorflow": 60}


def run(front_end, seed, most):
    if front_end == "numpy":
        return run_on_ranks(2, FUZZ, front_end, seed, most, timeout=40)
    need(front_end)
    return run_with(front_end, 2, FUZZ, front_end, seed, most, timeout=60)


@pytest.mark.parametrize("front_end", SAMPLES)
def test_a_sample_of_wrong_arguments(front_end):
    run(front_end, seed=20, most=SAMPLES[front_end])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("front_end", SAMPLES)
def test_all_wrong_arguments(front_end, seed):
    run(front_end, seed, most=1 << 30)
