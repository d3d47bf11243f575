"""The checks of ranks_keras_elastic.py on two living ranks, for each kind of Keras (keras_rank.py)."""

import pytest

from harness.checks import check_names, run_with
from harness.installed import is_installed, need

need("keras")

FRAMEWORK = {"torch": "torch", "tf.keras": "tensorflow", "jax": "jax"}
CASES = [(kind, check) for kind in FRAMEWORK for check in check_names("keras/ranks_keras_elastic.py")]
# Keras on JAX has no sums of several passes, and its compiled steps take seconds.
NOT_ON_JAX = (
    "check_sums_of_several_passes_are_forgotten",
    "check_the_learning_rate_follows_the_number_of_ranks",
)


@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    ("kind", "check"), [case for case in CASES if case[0] != "jax" or case[1] not in NOT_ON_JAX]
)
def test_elastic(kind, check):
    if not is_installed(FRAMEWORK[kind]):
        pytest.skip(f"Keras on {FRAMEWORK[kind]} needs that framework, which is not installed")
    init = "horovod.tensorflow.keras" if kind == "tf.keras" else "horovod.keras"
    place = ("keras/keras_rank.py::call_check", kind, "ranks_keras_elastic", check)
    run_with(FRAMEWORK[kind], 2, *place, init=init)
