"""The checks of ranks_*.py on 1, 2 and 3 ranks; the operations also without DLPack's C exchange API.

One job per number of ranks is started, when the first test that needs it runs.
"""

import functools

import pytest

pytest.importorskip("torch")

from launch import Report, checks_of

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
    "ranks_sync_batch_norm",
]
BY_ADDRESS = {"HOROVOD_TORCH_NO_DLPACK_API": "1"}
JOBS = {(1, "dlpack"): MODULES} | {(ranks, "dlpack"): [*MODULES, "ranks_matrix"] for ranks in (2, 3)}
JOBS |= {
    (2, "address"): ["ranks_ops", "ranks_matrix", "ranks_functions"],
    (3, "address"): ["ranks_optimizer"],
}
CASES = [
    (module, *job, check)
    for job, modules in JOBS.items()
    for module in modules
    for check in checks_of(module)
]


@functools.cache
def report(ranks, path):
    return Report(JOBS[ranks, path], ranks, BY_ADDRESS if path == "address" else None, timeout=580)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("module", "ranks", "path", "check"), CASES, ids=[f"{m}-{n}-{p}-{c}" for m, n, p, c in CASES]
)
def test_check(module, ranks, path, check):
    report(ranks, path).verify(module, check)
