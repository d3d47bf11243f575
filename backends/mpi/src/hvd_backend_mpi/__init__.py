"""The description of this backend, and a probe that tells whether it can work on this machine.

A job that uses the backend imports this module before any framework: keep it light.
"""

from __future__ import annotations

import os
from pathlib import Path

from hvd_core.backends.descriptor import Available, BackendDescriptor, Unavailable

_LIB = Path(__file__).resolve().parent / "lib"


def describe() -> BackendDescriptor:
    """The entry point."""
    return BackendDescriptor.from_file(
        Path(__file__).with_name("mpi.hvd.toml"),
        devices=("cpu", *device_types()),
        library=_LIB / "libhvd_backend_mpi.so",
        requires=("an MPI library: Open MPI >= 4.0.5, MPICH >= 3.4 or one with its ABI, or libmpi_abi",),
        probe=probe,
        launch=launch,
    )


def device_types() -> list[str]:
    """The device types whose memory an MPI library may read: those that libraries report, and those of option
    ``devices``. Whether this machine's library reads them is known when it runs."""
    listed = os.environ.get("HOROVOD_BACKEND_MPI_DEVICES", "").replace(" ", "").split(",")
    return list(dict.fromkeys(["cuda", "rocm", *(t for t in listed if t not in ("", "auto", "none", "cpu"))]))


def launch(size: int) -> list[str]:
    """The words of a command that starts ``size`` processes of one MPI job on this machine."""
    from hvd_backend_mpi.launching import command

    return command(size)


def probe() -> Available | Unavailable:
    """Whether there is an MPI library of the launcher's kind. Starts nothing in it."""
    from hvd_backend_mpi.library import look

    return look()
