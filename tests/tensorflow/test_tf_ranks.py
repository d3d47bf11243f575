"""The checks of ranks_tf_*.py on 1, 2 and 3 ranks. One job each, started by the first test that needs it."""

import functools
import importlib.util

import pytest

from tf_launch import Report, checks_of

OPS = ["ranks_tf_ops", "ranks_tf_gradients"]
BETWEEN = ["ranks_tf_errors", "ranks_tf_graphs", "ranks_tf_order"]  # for two ranks and more
ABOVE = [
    "ranks_tf_reductions",
    "ranks_tf_functions",
    "ranks_tf_tape_corners",
    "ranks_tf_optimizer_corners",
]
# What does not depend on how many ranks there are.
ONCE = ["ranks_tf_tape", "ranks_tf_optimizer", "ranks_tf_sync_batch_norm"]
RANDOM = "ranks_tf_random_graphs"
# Without it XLA leaves alone on the CPU what is not told to be compiled.
CLUSTERS = {"TF_XLA_FLAGS": "--tf_xla_cpu_global_jit"}
JOBS = {
    (1, "all"): [*OPS, "ranks_tf_reductions", "ranks_tf_functions", "ranks_tf_tape"],
    (2, "all"): [*OPS, *BETWEEN, RANDOM, *ABOVE, *ONCE],
    (3, "all"): [*BETWEEN, "ranks_tf_tape_corners", "ranks_tf_process_sets"],
    (2, "synchronous"): ["ranks_tf_errors"],
    (3, "more"): [*OPS, *(module for module in ABOVE if module != "ranks_tf_tape_corners")],
    (3, "random"): [RANDOM],
}
SLOW = ("more", "random")
ENVIRONMENT = {
    "all": CLUSTERS,
    "more": CLUSTERS,
    # A TensorFlow whose kernels cannot finish later, as far as we know.
    "synchronous": {"HOROVOD_TF_SYNCHRONOUS_KERNELS": "1"},
    "random": {**CLUSTERS, "HVD_TEST_TF_GRAPHS": "200"},
}
CASES = [
    pytest.param(*job, module, check, marks=[pytest.mark.slow] if job[1] in SLOW else [])
    for job, modules in JOBS.items()
    for module in modules
    for check in checks_of(module)
]


# Looked for, not imported: that takes seconds, and only the ranks need it.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None,
    reason="TensorFlow is not installed; `make test` does that",
)


@functools.cache
def report(ranks, kind):
    return Report(JOBS[ranks, kind], ranks, ENVIRONMENT[kind], timeout=880)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("ranks", "kind", "module", "check"), CASES)
def test_check(ranks, kind, module, check):
    report(ranks, kind).verify(module, check)
