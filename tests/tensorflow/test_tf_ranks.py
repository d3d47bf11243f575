"""The checks of ranks_tf_*.py on 1, 2 and 3 living ranks (tests/harness/frameworks.py)."""

import importlib.util

import pytest

from harness import check_names
from harness.frameworks import run_check

OPS = ["ranks_tf_ops", "ranks_tf_gradients"]
# On three ranks two agree where one differs, and Adasum has a rank beyond a power of two. Two ranks prove nothing more.
THREE = ["ranks_tf_errors", "ranks_tf_order", "ranks_tf_tape_corners", "ranks_tf_process_sets"]
ABOVE = ["ranks_tf_reductions", "ranks_tf_functions", "ranks_tf_optimizer_corners"]
# Checks that do not depend on the number of ranks.
ONCE = [
    *("ranks_tf_graphs", "ranks_tf_tape", "ranks_tf_optimizer"),
    *("ranks_tf_sync_batch_norm", "ranks_tf_names"),
]
RANDOM = "ranks_tf_random_graphs"
JOBS = {
    (1, "all"): [*OPS, "ranks_tf_reductions", "ranks_tf_functions", "ranks_tf_tape"],
    (2, "all"): [*OPS, RANDOM, *ABOVE, *ONCE],
    (3, "all"): THREE,
    (2, "synchronous"): ["ranks_tf_errors"],
    (2, "one thread"): ["ranks_tf_one_thread"],
    (3, "more"): [*OPS, *ABOVE, "ranks_tf_graphs"],
    (3, "random"): [RANDOM],
}
SLOW = ("more", "random")
# What the ranks' processes need from their start. Each costs processes of its own.
ENVIRONMENT = {
    # As with a TensorFlow whose kernels hold their thread until the operation is done.
    "synchronous": {"HOROVOD_TF_SYNCHRONOUS_KERNELS": "1"},
    "one thread": {"TF_NUM_INTEROP_THREADS": "1"},
    "random": {"HVD_TEST_TF_GRAPHS": "200"},
}
CASES = [
    pytest.param(*job, module, check, marks=[pytest.mark.slow] if job[1] in SLOW else [])
    for job, modules in JOBS.items()
    for module in modules
    for check in check_names(f"tensorflow/{module}.py")
]


# TensorFlow is not imported here: that takes seconds, and only the ranks need it.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None,
    reason="TensorFlow is not installed; `make test` does that",
)


@pytest.mark.timeout(500)
@pytest.mark.parametrize(("ranks", "kind", "module", "check"), CASES)
def test_check(ranks, kind, module, check):
    run_check("tensorflow", ranks, "tensorflow", module, check, process_env=ENVIRONMENT.get(kind))
