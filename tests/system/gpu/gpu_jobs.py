"""The jobs of the tests of horovod.torch on GPUs, as marks: those that tests/horovod runs on the simulated device
`gcu` are imported by the test_gpu_torch_*.py here, and get these marks in place of theirs.

`turns`: how often test_torch_device_stress.py does what it does.
"""

import pytest

import gpu_machine
from harness.frameworks import horovodrun


def job(ranks: int, backend: str, *, id: str = "", turns: int = 3000, **options):
    """A mark. The options are those of run_on_ranks()."""
    return pytest.mark.ranks(
        ranks,
        framework="torch",
        id=id or backend,
        process_env=gpu_machine.environment(ranks, HOROVOD_BACKEND=backend, HVD_TEST_TURNS=str(turns)),
        command=gpu_machine.command(*horovodrun(ranks)[:-1]),
        timeout=280,
        **options,
    )


NCCL_1 = job(1, "nccl")
NCCL_2 = job(2, "nccl")
NCCL_4 = job(4, "nccl", turns=300)
# Only the device's table is used: the operations are those of a backend for host memory.
TCP_2 = job(2, "cuda=tcp", turns=500)
SHM_2 = job(2, "cuda=shm", turns=500)
# No backend has the device: PyTorch copies.
NO_BACKEND_2 = job(2, "shm", id="no-backend", turns=500)
