"""The checks of ranks_*.py on one living rank and on two or three (tests/harness/frameworks.py); the operations and the
optimizer also without DLPack's C exchange API."""

import pytest

from harness import check_names
from harness.frameworks import run_check
from harness.installed import need

need("torch")

# On three ranks two agree where one differs, rows are uneven, sums depend on their order, a process set can be a part,
# and Adasum has a rank beyond a power of two. Two ranks prove nothing more.
THREE = [
    *("ranks_ops", "ranks_ops_scatter", "ranks_ops_sets", "ranks_errors", "ranks_autograd"),
    *("ranks_functions", "ranks_optimizer", "ranks_optimizer_more", "ranks_optimizer_corners"),
    *("ranks_shared_gradients", "ranks_sync_batch_norm"),
]
# Checks that do not depend on the number of ranks, apart from one, which has rules of its own.
TWO = ["ranks_optimizer_use", "ranks_optimizer_names"]
MODULES = [*THREE, *TWO]
# horovod.torch reads it when it is imported, so these checks have processes of their own.
BY_ADDRESS = {"HOROVOD_TORCH_NO_DLPACK_API": "1"}
JOBS = {
    (1, "dlpack"): MODULES,
    (2, "dlpack"): [*TWO, "ranks_memory"],
    (3, "dlpack"): [*THREE, "ranks_matrix"],
    (2, "address"): ["ranks_ops", "ranks_matrix", "ranks_functions", "ranks_optimizer", "ranks_memory"],
    (2, "more"): THREE,
    (3, "more"): TWO,
}
# The optimizer's checks once more, with gradients that live in memory which the ranks share.
SHARED = {"HVD_TEST_GRADIENT_BUFFERS": "shared"}
JOBS[2, "shared"] = [module for module in MODULES if module.startswith("ranks_optimizer")]
# The matrix with every form of every case.
JOBS[3, "whole"] = ["ranks_matrix"]
PROCESS_ENV = {
    "dlpack": None,
    "more": None,
    "address": BY_ADDRESS,
    "shared": SHARED,
    "whole": {"HVD_TEST_WHOLE_MATRIX": "1"},
}
SLOW = ("more", "shared", "whole")
CASES = [
    (module, *job, check)
    for job, modules in JOBS.items()
    for module in modules
    for check in check_names(f"torch/{module}.py")
]


@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    ("module", "ranks", "path", "check"),
    [
        pytest.param(m, n, p, c, id=f"{m}-{n}-{p}-{c}", marks=[pytest.mark.slow] if p in SLOW else [])
        for m, n, p, c in CASES
    ],
)
def test_check(module, ranks, path, check):
    run_check("torch", ranks, "torch", module, check, process_env=PROCESS_ENV[path])
