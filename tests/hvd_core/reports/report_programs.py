"""Programs of one process that ask for reports: one function each, named on the command line, with its arguments
behind. They print the answers."""

import json
import os
import subprocess
import sys

from horovod.common.basics import HorovodBasics

hvd = HorovodBasics()


def built(*names):
    """The answers of NAME_built(), and their types, as JSON."""
    said = {name: getattr(hvd, f"{name}_built")() for name in names}
    print(json.dumps([said, {name: type(value).__name__ for name, value in said.items()}]))


def import_mpi4py():
    """Fails where mpi4py finds no library. A program may not ask like this, as MPI would run afterwards."""
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI  # noqa: F401


def ask_without_a_job():
    assert hvd.mpi_built() and hvd.mpi_built()
    assert "announced_mpi" in sys.modules and "announced_acme" not in sys.modules
    assert not hvd.is_initialized() and not hvd.mpi_enabled() and not hvd.gloo_enabled()


def enabled():
    """In a job, and after it."""
    hvd.init()
    print(hvd.mpi_enabled(), hvd.gloo_enabled())
    try:
        print(hvd.mpi_enabled() or hvd.mpi_threads_supported())
    except ValueError as error:
        print(error)
    hvd.shutdown()
    print(hvd.mpi_enabled(), hvd.gloo_enabled())


def nccl():
    print(repr(hvd.nccl_built()), hvd.nccl_built() == hvd.nccl_built(), hvd.is_initialized())


def threads_of_mpi():
    import hvd_core

    hvd.init(backend="cpu=mpi")
    print(hvd.mpi_threads_supported(), hvd.mpi_enabled())
    print("told:", str(hvd_core.backend_report()).splitlines()[-1])
    if os.fork() == 0:  # a copy of the engine is left alone
        os._exit(hvd.mpi_threads_supported())
    assert os.wait()[1] == 0
    hvd.shutdown()


def measure(*command):
    """The exit code of a command, and the processor seconds that it takes."""
    done = subprocess.run(command, stdout=subprocess.DEVNULL)
    print(done.returncode, os.times().children_user + os.times().children_system)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
