"""The checks of ranks_tf_*.py on 1, 2 and 3 living ranks (tests/harness/frameworks.py)."""

import importlib.util

import pytest

from harness.checks import check_names, run_check

OPS = ["ranks_tf_ops", "ranks_tf_gradients"]
# On three ranks two agree where one differs, and Adasum has a rank beyond a power of two. Two ranks prove nothing more.
THREE = ["ranks_tf_errors", "ranks_tf_tape_corners", "ranks_tf_process_sets"]
# Checks of those modules that two ranks prove as well.
TWO_OF_CORNERS = {
    *("check_embeddings", "check_embeddings_in_functions_compiled_by_xla", "check_decided_at_run_time"),
    *("check_in_functions_compiled_by_xla", "check_slices_are_tensors_in_functions_compiled_by_xla"),
    *("check_partial_tape_of_a_keras_model", "check_unconnected_sources_that_cannot_be_reduced"),
}
ABOVE = ["ranks_tf_reductions", "ranks_tf_functions", "ranks_tf_optimizer_corners"]
# Checks that do not depend on the number of ranks.
ONCE = [
    *("ranks_tf_graphs", "ranks_tf_tape", "ranks_tf_optimizer"),
    *("ranks_tf_sync_batch_norm", "ranks_tf_names", "ranks_tf_order"),
]
# Checks of ABOVE that need three ranks.
OF_THREE = {("ranks_tf_optimizer_corners", "check_process_sets")}
RANDOM = "ranks_tf_random_graphs"
JOBS = {
    (1, "all"): ["ranks_tf_ops", "ranks_tf_functions", "ranks_tf_tape"],
    (2, "all"): [*OPS, RANDOM, *ABOVE, *ONCE, "ranks_tf_tape_corners"],
    (3, "all"): THREE,
    (2, "synchronous"): ["ranks_tf_errors"],
    (2, "one thread"): ["ranks_tf_one_thread"],
    # Gradients are made of the operations, which one rank proves by themselves.
    (1, "more"): ["ranks_tf_gradients", "ranks_tf_reductions"],
    (3, "more"): [*OPS, *ABOVE, "ranks_tf_graphs", "ranks_tf_order"],
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
# A tape of one rank reduces nothing, so no names and no other ranks' graphs matter.
NOT_ON_ONE_RANK = {
    *("check_generic_names", "check_several_tapes_in_one_function", "check_ranks_whose_graphs_differ"),
    "check_jacobians_are_this_ranks",
}


def is_slow(ranks, kind, module, check):
    if module == "ranks_tf_tape_corners":
        return (ranks == 2) != (check in TWO_OF_CORNERS)
    if ranks == 3 and (module, check) in OF_THREE:
        return False
    return kind in SLOW or (ranks == 1 and check in NOT_ON_ONE_RANK)


CASES = [
    pytest.param(*job, module, check, marks=[pytest.mark.slow] if is_slow(*job, module, check) else [])
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
