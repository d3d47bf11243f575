"""The checks of ranks_keras_elastic.py on two living ranks, for each kind of Keras (keras_rank.py)."""

from importlib.metadata import version

import pytest

from harness import check_names
from harness.frameworks import run_with
from harness.installed import is_installed, need

need("keras")

FRAMEWORK = {"torch": "torch", "tf.keras": "tensorflow", "jax": "jax"}
CASES = [(kind, check) for kind in FRAMEWORK for check in check_names("keras/ranks_keras_elastic.py")]
# Keras on JAX has no sums of several passes, and its compiled steps take seconds.
NOT_ON_JAX = (
    "check_sums_of_several_passes_are_forgotten",
    "check_the_learning_rate_follows_the_number_of_ranks",
)
# Commits in files are arrays of NumPy, and the callback sets the rate as the other callbacks do: PyTorch proves both.
PROVED_ON_TORCH = (
    "check_a_new_job_goes_on_from_a_commit_in_a_file",
    "check_the_learning_rate_follows_the_number_of_ranks",
)


def marks(kind, check):
    # Keras 2 has no PyTorch.
    has_torch = is_installed("torch") and not version("keras").startswith("2.")
    return pytest.mark.slow if kind != "torch" and has_torch and check in PROVED_ON_TORCH else ()


@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    ("kind", "check"),
    [pytest.param(*c, marks=marks(*c)) for c in CASES if c[0] != "jax" or c[1] not in NOT_ON_JAX],
)
def test_elastic(kind, check):
    if not is_installed(FRAMEWORK[kind]):
        pytest.skip(f"Keras on {FRAMEWORK[kind]} needs that framework, which is not installed")
    init = "horovod.tensorflow.keras" if kind == "tf.keras" else "horovod.keras"
    place = ("keras/keras_rank.py::call_check", kind, "ranks_keras_elastic", check)
    run_with(FRAMEWORK[kind], 2, *place, init=init)
