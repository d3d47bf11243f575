"""The checks of ranks_keras_*.py on 1, 2 and 3 living ranks, for each kind of Keras (keras_rank.py). The ranks are those
of the other tests with the kind's framework (tests/harness/frameworks.py)."""

from importlib.metadata import version

import pytest

from harness.checks import check_names, run_with
from harness.installed import is_installed, need

need("keras")

MODULES = [
    "ranks_keras_optimizer",
    "ranks_keras_more",
    "ranks_keras_gradients",
    "ranks_keras_callbacks",
    "ranks_keras_values",
    "ranks_keras_names",
]
FRAMEWORK = {"torch": "torch", "tensorflow": "tensorflow", "tf.keras": "tensorflow"}
# Of the callbacks, those that compute with the number of ranks.
ALONE = ["ranks_keras_callbacks"]
# All checks run on two ranks; on other numbers of ranks only those that depend on it. TensorFlow takes several times as
# long as PyTorch.
JOBS = {
    ("torch", 1): ALONE,
    ("torch", 2): MODULES,
    ("torch", 3): MODULES[1:3],
    ("tensorflow", 2): MODULES[:3],
    ("tf.keras", 2): MODULES[3:] + (["ranks_keras_keras2"] if version("keras").startswith("2.") else []),
}
SLOW = (
    {("torch", 4): MODULES}
    | {("tensorflow", ranks): MODULES for ranks in (1, 3)}
    | {("tf.keras", 3): MODULES}
)
# Of the less common uses, those in which a third rank has a part of its own.
OF_THREE = {"check_process_sets", "check_ranks_whose_models_differ"}


def is_slow(kind, ranks, module, check):
    return (kind, ranks) == ("torch", 3) and module == "ranks_keras_more" and check not in OF_THREE


CASES = [
    pytest.param(
        kind,
        ranks,
        module,
        check,
        id=f"{kind}-{ranks}-{module}-{check}",
        marks=pytest.mark.slow if jobs is SLOW or is_slow(kind, ranks, module, check) else (),
    )
    for jobs in (JOBS, SLOW)
    for (kind, ranks), modules in jobs.items()
    for module in modules
    for check in check_names(f"keras/{module}.py")
]


@pytest.mark.timeout(500)
@pytest.mark.parametrize(("kind", "ranks", "module", "check"), CASES)
def test_check(kind, ranks, module, check):
    framework = FRAMEWORK[kind]
    if not is_installed(framework):
        pytest.skip(f"Keras on {framework} needs that framework, which is not installed")
    init = "horovod.tensorflow.keras" if kind == "tf.keras" else "horovod.keras"
    options = {"init": init, "init_options": {"process_sets": "dynamic"}}
    if check == "check_no_other_framework_is_loaded":
        options["process_env"] = {"HVD_TEST_RANK": "fresh"}  # other tests have saved models, for example
    run_with(framework, ranks, "keras/keras_rank.py::call_check", kind, module, check, **options)
