"""Process sets: which ranks take part in an operation. Python bookkeeping only; the engine owns the real
ones.

``global_process_set`` holds all ranks and has id 0. ``horovod.common.basics`` fills in its ranks during
init(). Objects are compared by identity, as programs written for Horovod expect.
"""

from collections.abc import Iterable
from typing import Any

__all__ = ["ProcessSet", "global_process_set"]


class ProcessSet:
    """A set of ranks.

    Args:
        ranks_or_comm: the member ranks (ints, in any order), or an ``mpi4py.MPI.Comm``.

    Attributes:
        process_set_id: int once registered with the engine, None before.
        ranks: sorted list of global ranks, None while unknown.
        mpi_comm: the MPI communicator that defines the set, if one does.

    Raises:
        ValueError: `ranks_or_comm` holds something that is no int, or is neither iterable nor a communicator.
    """

    process_set_id: int | None = None
    ranks: list[int] | None = None
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Iterable[int] | Any):
        if hasattr(ranks_or_comm, "Get_rank") and hasattr(ranks_or_comm, "Get_group"):
            self.mpi_comm = ranks_or_comm
            return
        try:
            members = list(ranks_or_comm)
        except TypeError:
            raise ValueError(
                "A ProcessSet is made from a list of ranks or from an mpi4py communicator, "
                f"not from {type(ranks_or_comm).__name__}."
            ) from None
        try:
            as_ints = [int(rank) for rank in members]
        except (TypeError, ValueError):
            as_ints = None
        if as_ints is None or any(isinstance(r, (str, bytes)) or i != r for i, r in zip(as_ints, members)):
            raise ValueError(f"The ranks of a ProcessSet must be integers, but found {members!r}.")
        self.ranks = sorted(as_ints)

    def size(self) -> int | None:
        """Number of ranks in the set; None while it is not registered."""
        if self.process_set_id is None:
            return None
        if self.process_set_id == 0:
            return _runtime().size()
        return None if self.ranks is None else len(self.ranks)

    def rank(self) -> int | None:
        """Index of this process within the set; None while it is not registered.

        Raises:
            ValueError: this process is not a member, or Horovod is not initialized.
        """
        if self.process_set_id is None:
            return None
        if self.process_set_id == 0:
            return _runtime().rank()
        me = _runtime().rank()
        if self.ranks is None or me not in self.ranks:
            raise ValueError("Process is not part of provided process set.")
        return self.ranks.index(me)

    def included(self) -> bool | None:
        """Whether this process is a member; None while the ranks are unknown."""
        if self.process_set_id == 0:
            return True
        if self.ranks is None:
            return None
        return _runtime().rank() in self.ranks

    def _invalidate(self) -> None:
        """Forget the registration. Called when the engine has removed the set."""
        self.process_set_id = None

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"
        )

    __repr__ = __str__


def _runtime():
    # Imported late: process sets can be made where the engine cannot be loaded, on a Spark driver for
    # instance.
    from hvd_core import runtime

    return runtime


def _temp_process_set_object(process_set_id: int) -> ProcessSet:
    """A bare object that carries `process_set_id` and nothing else."""
    bare = ProcessSet.__new__(ProcessSet)
    bare.process_set_id = process_set_id
    return bare


global_process_set = ProcessSet([])
global_process_set.process_set_id = 0
global_process_set.ranks = None
