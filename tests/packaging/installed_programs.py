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


if __name__ == "__main__":
    globals()[sys.argv[1]]()
