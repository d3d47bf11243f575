"""Runs PyTorch's own tests of a backend of torch.distributed, those of the installed wheel, and counts the results.

    python tests/horovod/torch_distributed/torch_test_base.py hvd            # or gloo
    python tests/horovod/torch_distributed/torch_test_base.py hvd test_broadcast test_all_reduce_sum

Two ranks (WORLD_SIZE=3 for three), each test in processes of its own, which are forked: torch is imported once. A line
for each test that has not passed, then the counts. docs/torch-distributed.md has the last result.
"""

import os
import sys
import tempfile
import unittest

BACKEND = sys.argv[1] if len(sys.argv) > 1 else "hvd"
os.environ.update(
    {
        "BACKEND": "gloo",  # by which the decorators choose the tests
        "INIT_METHOD": "env://",
        "MASTER_ADDR": "127.0.0.1",
        "TEMP_DIR": tempfile.mkdtemp(),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
)
os.environ.setdefault("WORLD_SIZE", "2")
for folder in ("barrier", "test_dir", "init_dir"):
    os.makedirs(os.path.join(os.environ["TEMP_DIR"], folder), exist_ok=True)

import torch  # noqa: E402 (reads the variables)
import torch.distributed as dist  # noqa: E402
import torch.testing._internal.common_distributed as common  # noqa: E402

import horovod.torch.distributed  # noqa: E402, F401

common.TIMEOUT_DEFAULT = 120
from torch.testing._internal.distributed import distributed_test  # noqa: E402 (reads the variables)


class AsGloo(str):
    """The name of a backend, for tests that compare it with "gloo"."""

    def __eq__(self, other):
        return str.__eq__(self, other) or other == "gloo"

    def __ne__(self, other):
        return not self == other

    __hash__ = str.__hash__


distributed_test.BACKEND = AsGloo(BACKEND)  # with which the tests make their groups
for backends in common.DistTestCases.backend_feature.values():
    if "gloo" in backends:
        backends.add(BACKEND)


def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """As torch's, which refuses each group that is not named gloo."""
    group = dist.group.WORLD if group is None else group
    if dist.get_rank(group) >= 0:
        group.monitored_barrier(timeout, wait_all_ranks)


if BACKEND != "gloo":
    dist.monitored_barrier = monitored_barrier


class TestBase(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


class Shown(unittest.TextTestResult):
    """One line for each test that has not passed."""

    def _show(self, test, kind, error):
        text = str(error[1]).strip().splitlines() or [""]
        reasons = [line for line in text if "Error" in line] or text
        print(f"{kind} {test._testMethodName}: {reasons[-1][:200]}", flush=True)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self._show(test, "FAIL", error)

    def addError(self, test, error):
        super().addError(test, error)
        self._show(test, "ERROR", error)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        print(f"SKIP {test._testMethodName}: {reason[:120]}", flush=True)


if __name__ == "__main__":
    chosen = sys.argv[2:] or unittest.TestLoader().getTestCaseNames(TestBase)
    suite = unittest.TestSuite(TestBase(name) for name in chosen)
    with open(os.devnull, "w") as nothing:
        result = unittest.TextTestRunner(stream=nothing, resultclass=Shown).run(suite)
    bad, skipped = len(result.failures) + len(result.errors), len(result.skipped)
    passed = result.testsRun - bad - skipped
    print(f"{BACKEND}: {result.testsRun} tests, {passed} passed, {skipped} skipped, {bad} not passed")
    sys.exit(bool(bad))
