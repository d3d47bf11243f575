"""The checks of ranks_*.py on 1, 2 and 3 ranks; the operations also without DLPack's C exchange API.

One job per module and number of ranks is started, when the first test that needs it runs.
"""

import functools

import pytest

pytest.importorskip("torch")

from launch import Report, checks_of

MODULES = [
    "ranks_ops",
    "ranks_errors",
    "ranks_autograd",
    "ranks_functions",
    "ranks_optimizer",
    "ranks_optimizer_use",
]
BY_ADDRESS = {"HOROVOD_TORCH_NO_DLPACK_API": "1"}
JOBS = [(module, ranks, "dlpack") for module in MODULES for ranks in (1, 2, 3)]
JOBS += [("ranks_ops", 2, "address"), ("ranks_functions", 2, "address"), ("ranks_optimizer", 3, "address")]
CASES = [(*job, check) for job in JOBS for check in checks_of(job[0])]


@functools.cache
def report(module, ranks, path):
    return Report(module, ranks, BY_ADDRESS if path == "address" else None)


@pytest.mark.parametrize(
    ("module", "ranks", "path", "check"), CASES, ids=[f"{m}-{n}-{p}-{c}" for m, n, p, c in CASES]
)
def test_check(module, ranks, path, check):
    report(module, ranks, path).verify(check)
