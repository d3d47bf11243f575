"""Names and numbers of operations, reductions and element types; checks of arguments; join and barrier. Any thread.

Callers number reductions as Horovod does: ``hvd.Average`` is 0. Element types have one rule for all frameworks: a front
end maps the names to its framework's types, leaving out those that its framework does not have:
``frozenset(getattr(framework, name) for name in REDUCIBLE if hasattr(framework, name))``.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, Final

from hvd_core._runtime.current_job import engine
from hvd_core.types import DTYPES, OPERATIONS, USER_REDUCTIONS

OPERATION_NUMBERS = {name: operation.number for name, operation in OPERATIONS.items()}
"""The number of each operation in the native front-end table (hvd/frontend_abi.h)."""


def request_name(prefix: str, name: str | None) -> str | None:
    """The name under which the ranks negotiate a call; operations of different kinds may have the same ``name``.

    ``prefix``: the operation, or "grouped_allreduce" and so on where a front end keeps these apart. None, for an unnamed
    call, stays None: the engine numbers those.
    """
    return None if name is None else f"{prefix}.{name}"


def gradient_name(name: str | None, suffix: str = "grad") -> str | None:
    """The name of the operation that computes the gradient of the operation ``name``."""
    return None if name is None else f"{name}.{suffix}"


# Reductions.

_NUMBER_OF = {reduction.label: number for number, reduction in USER_REDUCTIONS.items()}

Average: Final[int] = _NUMBER_OF["Average"]
Sum: Final[int] = _NUMBER_OF["Sum"]
Adasum: Final[int] = _NUMBER_OF["Adasum"]
Min: Final[int] = _NUMBER_OF["Min"]
Max: Final[int] = _NUMBER_OF["Max"]
Product: Final[int] = _NUMBER_OF["Product"]

ENGINE_NUMBERS = {number: reduction.number for number, reduction in USER_REDUCTIONS.items()}
"""The engine's number of each reduce op. Hot paths look an op up here, and call engine_number() if it is missing."""

OF_ENGINE_NUMBER = {number: op for op, number in ENGINE_NUMBERS.items()}


def text_of(op: Any) -> str:
    """A reduce op for messages: ``Min``; ``op=17`` for a value that is not a reduce op."""
    return USER_REDUCTIONS[op].label if isinstance(op, int) and op in USER_REDUCTIONS else f"op={op!r}"


def engine_number(op: Any) -> int:
    """The engine's number of a reduce op. Raises ValueError if ``op`` is not a reduce op."""
    try:
        return ENGINE_NUMBERS[op]
    except (KeyError, TypeError):
        raise ValueError(
            f"Unknown reduce op {op!r:.80}. Use hvd.Average, Sum, Min, Max, Product or Adasum."
        ) from None


# Element types.

DTYPE_NUMBERS = {name: dtype.number for name, dtype in DTYPES.items()}
"""The engine's number of each element type, by its name in NumPy ("float32")."""

MOVABLE = frozenset(DTYPE_NUMBERS)
"""Types that allgather, broadcast and alltoall take."""

REDUCIBLE = frozenset(name for name, dtype in DTYPES.items() if dtype.reducible) - {"uint32", "uint64"}
"""Types that allreduce and reducescatter take in the frameworks' front ends: integers, and floats of 16 bits and more.
The original Horovod reduces neither uint32 nor uint64. The engine does, and bool but for averages; the NumPy API leaves
the choice to the engine."""


def unsupported_text(name: str, reduces: bool) -> str:
    """The text of the ValueError for a type that an operation does not take.

    Args:
        name: of the type, as the framework writes it.
        reduces: whether the operation is a reduction and only moves would take the type.
    """
    text = f"Tensor type {name} is not supported."
    if reduces:
        text += " Reductions take integers of up to 64 bits but uint32 and uint64, and floats of 16 bits and more."
    return text


# Groups of tensors.


def members_of(tensors: Any, tensor_type: type | tuple[type, ...]) -> list[Any]:
    """The tensors of a group as a new list, which may be empty. An iterator is used up by it.

    Args:
        tensors: the caller's argument.
        tensor_type: the framework's tensors. One tensor can be iterated over too, but it is not a group.

    Raises:
        ValueError: ``tensors`` is one tensor, or cannot be iterated over. A generator may raise other exceptions.
    """
    if isinstance(tensors, tensor_type) or not isinstance(tensors, Iterable):
        raise ValueError(f"A grouped operation takes a list of tensors, but found {type(tensors).__name__}.")
    return list(tensors)


def some_members_of(tensors: Any, tensor_type: type | tuple[type, ...]) -> list[Any]:
    """As members_of(). Raises ValueError also for an empty list."""
    members = members_of(tensors, tensor_type)
    if not members:
        raise ValueError("A grouped operation needs at least one tensor, but the list is empty.")
    return members


# Rows: entries of dimension 0.


def scattered_rows(rows: int, ranks: int, rank: int) -> int:
    """The rows that one rank of a process set gets in a reducescatter: the first ``rows % ranks`` ranks get one more.

    Args:
        rows: dimension 0 of the tensor.
        ranks: the size of the set.
        rank: the place of the rank in the set, from 0.
    """
    return rows // ranks + (1 if rank < rows % ranks else 0)


def row_counts(splits: Any) -> list[int]:
    """The ``splits`` of an alltoall as a list of ints, one for each rank of the set.

    Raises:
        ValueError: ``splits`` is not a sequence of integers. Whether they fit the tensor, the engine checks.
    """
    try:
        entries = list(splits)
    except TypeError:
        raise ValueError(f"alltoall expects a 1D splits tensor, not {splits!r:.80}.") from None
    try:
        return [operator.index(entry) for entry in entries]
    except TypeError:
        raise ValueError(
            f"alltoall expects splits to contain 32-bit integer elements, not {splits!r:.80}."
        ) from None


# The operations without tensors. Ctrl-C ends the wait.


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
