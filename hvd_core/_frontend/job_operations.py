"""The operations without tensors: join and barrier. Any thread; Ctrl-C ends the wait."""

from __future__ import annotations

from hvd_core._runtime.current_job import engine


def join() -> int:
    """Say that this rank has no more data, and wait for the other ranks; returns the rank that joined last.

    Until then this rank takes part in the operations of the others, on all its process sets, with neutral data: to a
    reduction it gives the identity of the operation (0 for Sum, Average and Adasum, 1 for Product, the largest value for
    Min, the smallest for Max; averages still divide by the number of all ranks of the set), to allgather and alltoall no
    rows. The results are dropped on this rank. A broadcast from a rank that has joined fails. The others may also change
    the process sets; a ProcessSet that they have removed is not registered any more when join() returns.

    Raises:
        ValueError: before init(). HorovodInternalError: a rank is gone.
    """
    from hvd_core._runtime.process_sets import registry

    core = engine()
    handle = core.join()
    try:
        core.wait(handle)
        registry().forget_removed()
        return int(core.last_joined(handle))
    finally:
        core.release(handle)


def barrier(process_set_number: int) -> None:
    """Wait until all ranks of a process set have called barrier().

    Raises:
        ValueError: before init(). HorovodInternalError: a rank is gone.
    """
    engine().barrier(process_set_number, True)
