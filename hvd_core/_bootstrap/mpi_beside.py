"""MPI for the program, through mpi4py, in a job whose data another backend moves.

Programs ask whether MPI can be used, and use ``MPI.COMM_WORLD`` for messages of their own. The job needs none of this.
Called on a thread of the program, never by the engine.
"""

import importlib.util
import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES

from hvd_core._base.sockets import BootstrapError
from hvd_core._bootstrap import lasting_store, mpi_library, rendezvous_way
from hvd_core._bootstrap.identity import identify
from hvd_core._bootstrap.mpi_rendezvous import available, start_mpi

# Launchers that start MPI in every process. srun may or may not.
_START_MPI = ("openmpi", "mpich", "pmix", "mpi")


def can_be_loaded(environ):
    """Whether mpi4py is installed and there is an MPI library for it. Loads neither.

    The search reads file names only, so that a library which cannot be loaded counts as well.
    """
    if "mpi4py.MPI" in sys.modules:
        return True
    if not available():
        return False
    folders = importlib.util.find_spec("mpi4py").submodule_search_locations or ()
    if any(os.path.exists(os.path.join(f, f"MPI{end}")) for f in folders for end in EXTENSION_SUFFIXES):
        return True  # compiled for the MPI of this machine; a wheel from an index has a file for each MPI
    told = environ.get("MPI4PY_LIBMPI", "")
    if told:
        return any(os.path.exists(place) for place in told.split(os.pathsep))
    places = mpi_library.settings("", environ).get("MPI4PY_LIBMPI", "").split(os.pathsep)
    return any(map(os.path.exists, places)) or mpi_library.on_the_loaders_path(environ)


def has_all_threads(launcher, size, before):
    """Whether MPI may be called by several threads at once (MPI_THREAD_MULTIPLE). None if `launcher` has started no MPI.

    Starts MPI with that level if the program has not started it; HOROVOD_MPI_THREADS_DISABLE=1 asks for no threads. Then
    it calls `before` first, which returns when all ranks have called it.

    Args:
        size: how many ranks the job has. MPI starts on all processes of the launcher together: it is not started for a
            job of some of them.

    Raises BootstrapError if mpi4py cannot be used, uses another MPI than the launcher, or cannot be started.
    """
    MPI = sys.modules.get("mpi4py.MPI")
    runs = MPI is not None and MPI.Is_initialized() and not MPI.Is_finalized()
    if launcher not in _START_MPI and not (launcher == "srun" and runs):
        return None
    launched = identify(os.environ) if launcher != "mpi" else None
    if not runs and launched is not None and (launched.size or size) != size:
        raise BootstrapError(
            f"this job has {size} of the {launched.size} processes that {launcher} has started, and MPI starts on all of "
            "them together: let all processes start it before init(), by 'from mpi4py import MPI'"
        )
    if not runs and lasting_store.pmi_was_used() and rendezvous_way.in_step(os.environ):
        raise BootstrapError(
            "srun's process manager has been used by init(), and under Slurm it serves a process once: MPI would "
            "end the job. Start MPI before init(), by 'from mpi4py import MPI'; the ranks then find each other over MPI."
        )
    MPI = start_mpi(launcher, before)
    found = (MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size())
    if launched is not None and found != (launched.rank, launched.size or found[1]):
        raise BootstrapError(
            f"horovod: {launcher} says this is rank {launched.rank} of {launched.size}, MPI says {found[0]} of "
            f"{found[1]}: mpi4py uses another MPI than the launcher. Set MPI4PY_LIBMPI to the library of the launcher's "
            "MPI."
        )
    return MPI.Query_thread() == MPI.THREAD_MULTIPLE
