"""A program that looks at the report of both faces before init()."""

import sys

import hvd_core
from hvd_core.backends._selection.plan import BackendReport


def check_before_init():
    import horovod.torch as torch

    made = hvd_core.backend_report()
    assert isinstance(made, BackendReport) and made[0].operation == "allreduce" and made[0].device == "cpu"
    assert made[0].backend == "shm" and made[0].support == "NATIVE" and made[0].score > 0
    assert torch.backend_report() == torch.mpi_ops.backend_report() == made
    assert not hvd_core.is_initialized()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
