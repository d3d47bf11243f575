"""The checks of ranks_jax_elastic.py on two living ranks."""

import pytest

from harness.checks import check_names, run_check
from harness.installed import need

need("jax", "optax")


@pytest.mark.timeout(500)
@pytest.mark.parametrize("check", check_names("jax/ranks_jax_elastic.py"))
def test_elastic(check):
    run_check("jax", 2, "jax", "ranks_jax_elastic", check)
