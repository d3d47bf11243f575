"""The checks of ranks_elastic.py on two living ranks."""

import pytest

from harness import check_names
from harness.frameworks import run_check
from harness.installed import need

need("torch")


@pytest.mark.parametrize("check", check_names("torch/ranks_elastic.py"))
def test_elastic(check):
    run_check("torch", 2, "torch", "ranks_elastic", check)
