"""Programs of interpreters in which a wheel is installed: one function each, named on the command line."""

import sys


def sum_alone():
    """Prints the file of the engine."""
    import numpy as np

    import hvd_core as hvd
    import hvd_core._core as core

    hvd.init()
    assert (hvd.allreduce(np.arange(5.0)) == np.arange(5.0)).all()
    hvd.shutdown()
    print(core.__file__)


def sum_of_ranks():
    """On several ranks: each gets the sum of all."""
    import numpy as np

    import hvd_core as hvd

    hvd.init()
    assert hvd.size() > 1
    total = hvd.allreduce(np.full(1000, hvd.rank() + 1.0), op=hvd.Sum)
    assert (total == hvd.size() * (hvd.size() + 1) / 2).all()
    print(f"rank {hvd.rank()} of {hvd.size()} has the sum")
    hvd.shutdown()


def torch_sum_of_ranks():
    """The same with PyTorch."""
    import torch

    import horovod.torch as hvd

    hvd.init()
    assert hvd.size() > 1
    total = hvd.allreduce(torch.full((1000,), hvd.rank() + 1.0), op=hvd.Sum)
    assert (total == hvd.size() * (hvd.size() + 1) / 2).all()
    print(f"rank {hvd.rank()} of {hvd.size()} has the sum")
    hvd.shutdown()


def print_versions():
    """Of the distributions and packages, and the place of the package horovod."""
    from importlib.metadata import version

    import horovod
    import hvd_core  # noqa: F401
    from horovod.common.basics import HorovodBasics

    basics = HorovodBasics()
    basics.init()
    basics.shutdown()
    print(version("horovod"), horovod.__version__, version("hvd-core"), horovod.__file__)


def collectives():
    """A rank of a job: allreduce, allgather and broadcast of NumPy arrays; prints the machine and the backend."""
    import platform

    import numpy as np

    import hvd_core as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for count in (5, 100_000):  # in one piece, and in chunks
        for kind in (np.float32, np.float16, np.int64):
            ours = (np.arange(count) % 7 + rank).astype(kind)
            total = sum((np.arange(count) % 7 + r).astype(kind) for r in range(size))
            assert (hvd.allreduce(ours, op=hvd.Sum, name=f"sum of {count} {kind}") == total).all()
            rows = hvd.allgather(ours[: count - rank], name=f"rows of {count} {kind}")
            assert len(rows) == sum(count - r for r in range(size)) and (rows[: count - rank][0] == 0)
            sent = hvd.broadcast(ours, root_rank=size - 1, name=f"last of {count} {kind}")
            assert (sent == ours - kind(rank) + kind(size - 1)).all()
    used = {row.backend for row in hvd.backend_report() if row.device == "cpu"}
    print(f"rank {rank} of {size} on {platform.machine()}, {', '.join(used)}: right")
    hvd.shutdown()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
