"""Jobs of an MPI communicator: init(comm=<mpi4py communicator>).

The job uses a duplicate of the communicator, separate from the program's own messages. Only the thread that runs init(),
add_process_set() or shutdown() calls MPI, never the engine.
"""

import contextlib
import sys

from hvd_core._base.sockets import BootstrapError
from hvd_core._bootstrap.identity import Identity, identify
from hvd_core._bootstrap.job_members import shorten
from hvd_core._bootstrap.mpi_rendezvous import OTHER_MPI, finish, hand_over, start_mpi
from hvd_core._bootstrap.rendezvous import Rendezvous


def members_of(comm):
    """The ranks in MPI.COMM_WORLD of the processes of ``comm``, as a tuple; () for MPI.COMM_NULL."""
    if not comm:
        return ()
    MPI = sys.modules["mpi4py.MPI"]
    return tuple(_translated(MPI, comm, MPI.COMM_WORLD, "MPI.COMM_WORLD"))


class JobComm:
    """The job's own communicator. ``given`` is the communicator that init() was called with."""

    def __init__(self, MPI, given, own):
        self._MPI, self.given, self._own = MPI, given, own

    def ranks_of(self, comm):
        """The job's ranks in ``comm``, in its order; [] for MPI.COMM_NULL.

        Raises ValueError for an intercommunicator, or if a process of ``comm`` is not in the job.
        """
        if not comm:
            return []
        _refuse_inter(comm, "ProcessSet")
        return _translated(self._MPI, comm, self._own, "this job")

    def close(self):
        """Frees the duplicate, unless MPI is finalized already."""
        own, self._own = self._own, None
        if own is not None and not self._MPI.Is_finalized():
            with contextlib.suppress(self._MPI.Exception):
                own.Free()


def find_store(comm, environ, deadline):
    """(Identity, Rendezvous, JobComm) of the job of ``comm``'s processes.

    Raises ValueError for a communicator that cannot form a job, BootstrapError if its processes do not connect or MPI is
    not the launcher's.
    """
    if not comm:
        raise ValueError(
            "horovod: init(comm=...) was given MPI.COMM_NULL (or a communicator that has been freed): this process is in "
            "no job. Call init() in those processes only that the communicator has."
        )
    _refuse_inter(comm, "init")
    launched = _launched(environ)
    MPI = start_mpi(launched.launcher)
    world = MPI.COMM_WORLD
    whole = Identity(world.Get_rank(), world.Get_size(), launcher=launched.launcher)
    if launched.launcher == "single":
        whole = Identity(whole.rank, whole.size, launcher="mpi")
    elif (whole.rank, whole.size) != (launched.rank, launched.size or whole.size):
        raise BootstrapError(
            f"horovod: {launched.launcher} says this is rank {launched.rank} of {launched.size}, MPI says "
            f"{whole.rank} of {whole.size}: {_started_otherwise(launched)}"
        )
    members = tuple(_translated(MPI, comm, world, "MPI.COMM_WORLD"))
    identity = whole
    if members != tuple(range(whole.size)):
        place = (comm.Get_rank(), comm.Get_size())
        identity = Identity(*place, launcher=whole.launcher, members=members, launched=whole)
    own, request = comm.Idup()
    finish(request, deadline, "duplicate the communicator that init() was given")
    # If this fails, the duplicate is not freed: freeing is collective, and the other ranks may not take part.
    address, secret, server = hand_over(MPI, own, deadline)
    return identity, Rendezvous(identity, address, secret, 1, server=server), JobComm(MPI, comm, own)


def _launched(environ):
    try:
        return identify(environ)
    except ValueError:
        return Identity(0, 1)  # the variables belong to another program; MPI knows rank and size


def _started_otherwise(launched):
    if launched.launcher in ("horovodrun", "torchrun"):
        return f"{launched.launcher} does not start MPI. Start with mpirun, or with horovodrun --mpi."
    return OTHER_MPI


def _refuse_inter(comm, what):
    if comm.Is_inter():
        raise ValueError(
            f"horovod: {what}: an intercommunicator joins two groups of processes, of which neither is the job. Merge it "
            "first: comm.Merge()."
        )


def _translated(MPI, comm, among, name):
    """The ranks in ``among`` of the processes of ``comm``. Raises ValueError if one is not in ``among``."""
    theirs, ours = comm.Get_group(), among.Get_group()
    try:
        ranks = MPI.Group.Translate_ranks(theirs, list(range(theirs.Get_size())), ours)
    finally:
        theirs.Free()
        ours.Free()
    outside = [rank for rank, there in enumerate(ranks) if there == MPI.UNDEFINED]
    if outside:
        raise ValueError(
            f"horovod: processes {shorten(tuple(outside))} of the communicator are not in {name}. Processes that MPI "
            "starts or connects while the program runs cannot take part."
        )
    return ranks
