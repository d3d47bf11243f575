"""What hvd-core is told about this backend before it loads anything, and whether it can work on this machine.

Imported by ``hvd plugin list`` and the like in processes that will never use the backend: nothing heavy here.
"""

from __future__ import annotations

import os
from pathlib import Path

from hvd_core.backends.descriptor import Available, BackendDescriptor, Unavailable

_LIB = Path(__file__).resolve().parent / "lib"


def describe() -> BackendDescriptor:
    """The entry point."""
    return BackendDescriptor(
        name="mpi",
        abi=(1, 0),
        devices=("cpu", *device_types()),
        provides=frozenset({"comm"}),
        library=_LIB / "libhvd_backend_mpi.so",
        requires=("an MPI library: Open MPI >= 4.0.5, MPICH >= 3.4 or one with its ABI, or libmpi_abi",),
        probe=probe,
        launchers=("openmpi", "mpich", "srun", "pmix", "mpi"),
        launch=launch,
    )


def device_types() -> list[str]:
    """Of the devices whose memory an MPI library may read: those that libraries say themselves, and those of option
    ``devices``. Which of them this one reads is known when it runs."""
    listed = os.environ.get("HOROVOD_BACKEND_MPI_DEVICES", "").replace(" ", "").split(",")
    return list(dict.fromkeys(["cuda", "rocm", *(t for t in listed if t not in ("", "auto", "none", "cpu"))]))


def launch(size: int) -> list[str]:
    """What starts ``size`` processes of one MPI job here."""
    from hvd_backend_mpi.launching import command

    return command(size)


def probe() -> Available | Unavailable:
    """Whether there is an MPI library of the launcher's kind. Starts nothing in it."""
    from hvd_backend_mpi.library import look

    return look()
