"""Wrong arguments on one rank, for each public function of each front end: see wrong_arguments.py.

A sample is part of `make test`; all cases are `slow`.
"""

import pytest

from harness.installed import is_installed
from wrong_arguments import fuzz

with_torch = pytest.mark.skipif(not is_installed("torch"), reason="torch is not installed")
with_tensorflow = pytest.mark.skipif(not is_installed("tensorflow"), reason="tensorflow is not installed")
three_seeds = pytest.mark.parametrize("seed", range(3))


@pytest.mark.ranks(2)
def test_a_sample_with_numpy():
    fuzz("numpy", seed=20, most=120)


@with_torch
@pytest.mark.ranks(2, framework="torch")
def test_a_sample_with_torch():
    fuzz("torch", seed=20, most=120)


@with_tensorflow
@pytest.mark.ranks(2, framework="tensorflow")
def test_a_sample_with_tensorflow():
    fuzz("tensorflow", seed=20, most=60)


@three_seeds
@pytest.mark.ranks(2, slow=True)
def test_all_with_numpy(seed):
    fuzz("numpy", seed)


@with_torch
@three_seeds
@pytest.mark.ranks(2, framework="torch", slow=True)
def test_all_with_torch(seed):
    fuzz("torch", seed)


@with_tensorflow
@three_seeds
@pytest.mark.ranks(2, framework="tensorflow", slow=True)
def test_all_with_tensorflow(seed):
    fuzz("tensorflow", seed)
