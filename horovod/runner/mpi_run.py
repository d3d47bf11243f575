"""Programs' questions about the mpirun of this machine. ``horovod._runner.mpi`` answers them. Any thread."""

import os
from collections.abc import Callable, Mapping

from horovod._compat import missing_attribute
from horovod._runner import mpi

__all__ = ["is_intel_mpi", "is_mpich", "is_open_mpi", "is_spectrum_mpi", "mpi_available"]


def _kind(env: Mapping[str, str] | None) -> str | None:
    try:
        return mpi.find_mpirun(os.environ if env is None else env).kind
    except ValueError:
        return None


def mpi_available(env: Mapping[str, str] | None = None) -> bool:
    """Whether there is an mpirun that ``horovodrun --mpi`` would use. `env`: variables instead of os.environ."""
    return _kind(env) is not None


def is_open_mpi(env: Mapping[str, str] | None = None) -> bool:
    """Whether that mpirun is Open MPI's."""
    return _kind(env) == mpi.OPEN_MPI


def is_spectrum_mpi(env: Mapping[str, str] | None = None) -> bool:
    """Whether that mpirun is IBM Spectrum MPI's."""
    return _kind(env) == mpi.SPECTRUM


def is_mpich(env: Mapping[str, str] | None = None) -> bool:
    """Whether that mpirun is MPICH's."""
    return _kind(env) == mpi.MPICH


def is_intel_mpi(env: Mapping[str, str] | None = None) -> bool:
    """Whether that mpirun is Intel MPI's."""
    return _kind(env) == mpi.INTEL


__getattr__: Callable[[str], object] = missing_attribute(__name__)
