"""The checks of ranks_keras_jax.py on living ranks with JAX."""

import pytest

from harness.checks import check_names, run_with
from harness.installed import need

need("keras", "jax", "optax")

# Steps that are not compiled take seconds.
SLOW = {"check_accumulated_and_eager_steps"}


def marks(ranks, check):
    return () if ranks == 2 and check not in SLOW else pytest.mark.slow


CASES = [
    pytest.param(ranks, check, id=f"jax-{ranks}-{check}", marks=marks(ranks, check))
    for ranks in (2, 3)
    for check in check_names("keras/ranks_keras_jax.py")
]


@pytest.mark.timeout(500)
@pytest.mark.parametrize(("ranks", "check"), CASES)
def test_check(ranks, check):
    place = ("keras", "ranks_keras_jax", check)
    run_with("jax", ranks, "harness/framework_rank.py::call_check", *place, init="horovod.keras", timeout=200)
