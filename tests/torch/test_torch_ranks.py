"""The checks of ranks_*.py on 1, 2 and 3 living ranks (tests/harness/frameworks.py); the operations also without DLPack's
C exchange API."""

import pytest

from harness import check_names
from harness.frameworks import run_check
from harness.installed import need

need("torch")

MODULES = [
    "ranks_ops",
    "ranks_ops_scatter",
    "ranks_ops_sets",
    "ranks_errors",
    "ranks_autograd",
    "ranks_functions",
    "ranks_optimizer",
    "ranks_optimizer_use",
    "ranks_optimizer_more",
    "ranks_optimizer_corners",
    "ranks_optimizer_names",
    "ranks_shared_gradients",
    "ranks_sync_batch_norm",
]
# horovod.torch reads it when it is imported, so these checks have processes of their own.
BY_ADDRESS = {"HOROVOD_TORCH_NO_DLPACK_API": "1"}
# The matrix and the optimizer take longest: no number of ranks has them both with DLPack's API and without it.
JOBS = {
    (1, "dlpack"): MODULES,
    (2, "dlpack"): [*MODULES, "ranks_memory"],
    (3, "dlpack"): [*(module for module in MODULES if module != "ranks_optimizer"), "ranks_matrix"],
    (2, "address"): ["ranks_ops", "ranks_matrix", "ranks_functions", "ranks_memory"],
    (3, "address"): ["ranks_optimizer"],
}
# The optimizer's checks once more, with gradients that live in memory which the ranks share.
SHARED = {"HVD_TEST_GRADIENT_BUFFERS": "shared"}
JOBS[2, "shared"] = [module for module in MODULES if module.startswith("ranks_optimizer")]
# The matrix with every form of every case.
JOBS[3, "whole"] = ["ranks_matrix"]
PROCESS_ENV = {
    "dlpack": None,
    "address": BY_ADDRESS,
    "shared": SHARED,
    "whole": {"HVD_TEST_WHOLE_MATRIX": "1"},
}
SLOW = ("shared", "whole")
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
