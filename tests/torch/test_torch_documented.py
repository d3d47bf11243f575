"""The checks of ranks_documented.py on two living ranks."""

import pytest

from harness import check_names
from harness.frameworks import run_check
from harness.installed import need

need("torch")


@pytest.mark.parametrize("check", check_names("torch/ranks_documented.py"))
def test_documented_program(check):
    run_check("torch", 2, "torch", "ranks_documented", check)
