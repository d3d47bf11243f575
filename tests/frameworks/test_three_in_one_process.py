"""PyTorch, TensorFlow and JAX in one process use one engine in one job."""

import pytest

from harness.checks import check_names, run_check
from harness.installed import need

need("torch", "tensorflow", "jax")

MODULE = "ranks_three_frameworks"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("check", check_names(f"frameworks/{MODULE}.py"))
def test_check(check, ranks):
    own_ranks = {"HVD_TEST_THREE_FRAMEWORKS": "1"}
    run_check("tensorflow", ranks, "frameworks", MODULE, check, process_env=own_ranks, timeout=300)
