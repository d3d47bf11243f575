"""The operations of ``horovod.jax``, on arrays and on pytrees of arrays, inside and outside of compiled programs.

Outside of ``jit`` a call returns when the result is there. In a program (``jit``, ``grad``, ``vmap``, ``scan``,
``checkpoint``) it is a part of it: it begins when its inputs are computed, in any order, and XLA continues. It is
a pure function of its inputs for the compiler: an operation whose result is not used is left out, so all ranks must trace
alike. Errors in a program come from JAX, when the result is waited for, with the engine's message.

Names: an operation of a program without a name is called by the file and line of its call. Any thread.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from horovod.common.arguments import Adasum, Average
from horovod.common.basics import engine
from horovod.common.failed_calls import reported_for_each
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.jax._calls import Call, check, collective
from horovod.jax._trace import is_traced, name_in_program
from horovod.jax.compression import Compression, Compressor
from hvd_core._frontend import operations
from hvd_core._frontend.operations import engine_number, row_counts
from hvd_core._runtime.failures import send_failure
from hvd_core._runtime.process_sets import number_of

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "reducescatter",
]


def allreduce(
    tensor: Any,
    op: int = Average,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce an array, or each array of a pytree, over all ranks. Differentiable.

        loss = hvd.allreduce(loss)  # the mean of all ranks

    Args:
        tensor: an array of any shape, or a pytree of arrays, which is reduced as one operation. Integers of up to 64 bits
            but uint32 and uint64, and floats of 16 bits and more, in host memory. Structure, shapes and dtypes must be
            the same on all ranks.
        op: hvd.Average, Sum, Min, Max, Product or Adasum. Averages of integers truncate toward zero.
        name: identifies the operation across ranks.
        compression: what is sent instead of the arrays.
        prescale_factor, postscale_factor: the input and the result are multiplied by them.
        process_set: the ranks that take part.

    Returns:
        Arrays of the same structure, shapes and dtypes, equal on all ranks.

    Raises:
        ValueError: an array, op or process set cannot be used, or before init(); the matching calls of the other ranks
            fail. NotImplementedError: the array is not in host memory.
        HorovodInternalError: ranks disagree, or a rank has made a mistake or is gone. In programs it is an error of JAX
            with the same message.
    """

    attributes = _reduction(op, prescale_factor, postscale_factor)
    return _on_tree("allreduce", tensor, name, process_set, attributes, compression)


def _reduction(op: int, prescale_factor: float, postscale_factor: float) -> Callable[[], dict[str, Any]]:
    return lambda: {
        "reduce_op": engine_number(op),
        "prescale": float(prescale_factor),
        "postscale": float(postscale_factor),
    }


def grouped_allreduce(
    tensors: Sequence[Any],
    op: int = Average,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Reduce a list of arrays as one all-or-nothing operation; returns a list. See allreduce().

    loss, accuracy = hvd.grouped_allreduce([loss, accuracy])
    """
    attributes = _reduction(op, prescale_factor, postscale_factor)
    reduced: list[Any] = _on_tree(
        "allreduce", tensors, name, process_set, attributes, compression, grouped=True
    )
    return reduced


def allgather(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Concatenate the arrays of all ranks along dimension 0, in rank order. Differentiable.

        losses = hvd.allgather(loss.reshape(1))  # shape (hvd.size(),)

    Args:
        tensor: an array of one dimension or more, or a pytree of them. Dimension 0 may differ from rank to rank outside
            of programs; in a program it must be the same, as shapes are fixed there.
        name, process_set: as in allreduce().

    Raises:
        ValueError, NotImplementedError, HorovodInternalError: as in allreduce().
    """
    return _on_tree("allgather", tensor, name, process_set)


def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Gather a list of arrays as one all-or-nothing operation; returns a list. See allgather().

    outputs, labels = hvd.grouped_allgather([outputs, labels])
    """
    gathered: list[Any] = _on_tree("allgather", tensors, name, process_set, grouped=True)
    return gathered


def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root's array, or pytree of arrays, on every rank. Differentiable.

        batch = hvd.broadcast(batch, root_rank=0)

    Args:
        tensor: an array or a pytree; structure, shapes and dtypes must be the same on all ranks.
        root_rank: the GLOBAL rank that sends, also within a process set.
        name, process_set: as in allreduce().

    Raises:
        ValueError, NotImplementedError, HorovodInternalError: as in allreduce().
    """
    return _on_tree("broadcast", tensor, name, process_set, lambda: {"root_rank": int(root_rank)})


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows of an array to each rank, and receive the rows that the other ranks send here. Differentiable.

        received, rows = hvd.alltoall(tokens, splits=rows_for_each_rank)

    Args:
        tensor: an array of one dimension or more.
        splits: how many rows go to each rank of the process set, in rank order; outside of programs only. None: equal
            shares, dimension 0 must be a multiple of the number of ranks.
        name, process_set: as in allreduce().

    Returns:
        The received rows in rank order. With `splits` a pair: these, and how many came from each rank, int32.

    Raises:
        ValueError: as in allreduce(), for splits that do not fit, and for splits in a program.
        NotImplementedError, HorovodInternalError: as in allreduce().
    """

    def attributes() -> dict[str, Any]:
        return {} if splits is None else {"splits": tuple(row_counts(np.asarray(splits)))}

    results = _on_tree("alltoall", tensor, name, process_set, attributes)
    return results[0] if splits is None else results


def reducescatter(
    tensor: Any,
    op: int = Average,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce an array over all ranks and return this rank's rows of the result. Differentiable.

        rows = hvd.reducescatter(jnp.ones((2 * hvd.size(), 3)), op=hvd.Sum)  # shape (2, 3)

    Args:
        tensor: an array of one dimension or more, or a pytree of them. If the rows are not a multiple of the number of
            ranks, the first ranks get one more.
        op: hvd.Average, Sum, Min, Max or Product.
        name, compression, prescale_factor, postscale_factor, process_set: as in allreduce().

    Raises:
        ValueError, NotImplementedError, HorovodInternalError: as in allreduce().
    """

    attributes = _scattering(op, prescale_factor, postscale_factor)
    return _on_tree("reducescatter", tensor, name, process_set, attributes, compression)


def _scattering(op: int, prescale_factor: float, postscale_factor: float) -> Callable[[], dict[str, Any]]:
    def attributes() -> dict[str, Any]:
        if op == Adasum:
            raise ValueError("Reducescatter has no op Adasum. Use hvd.Average, Sum, Min, Max or Product.")
        return _reduction(op, prescale_factor, postscale_factor)()

    return attributes


def grouped_reducescatter(
    tensors: Sequence[Any],
    op: int = Average,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Reduce and scatter a list of arrays as one operation; returns a list. See reducescatter().

    weights, biases = hvd.grouped_reducescatter([weights, biases], op=hvd.Sum)
    """
    attributes = _scattering(op, prescale_factor, postscale_factor)
    reduced: list[Any] = _on_tree(
        "reducescatter", tensors, name, process_set, attributes, compression, grouped=True
    )
    return reduced


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the process set have called barrier(). Outside of programs only.

    Raises:
        ValueError: in a program, before init(), or for a set that is not registered.
        HorovodInternalError: a rank is gone.
    """
    with reported_for_each("barrier", "barrier", [None], process_set):
        _need_no_program("barrier")
        number = number_of(process_set)
    operations.barrier(number)


def join() -> int:
    """Say that this rank has no more data, and take part in the operations of the others with neutral data until all have
    joined. Outside of programs only. Returns the rank that joined last.

    Raises:
        ValueError: in a program, or before init(). HorovodInternalError: a rank is gone.
    """
    _need_no_program("join")
    return operations.join()


def _need_no_program(function: str) -> None:
    if is_traced(()):
        raise ValueError(f"{function}() cannot be a part of a compiled program. Call it outside of jit.")


def _on_tree(
    operation: str,
    tree: Any,
    name: str | None,
    process_set: ProcessSet,
    attributes: Callable[[], dict[str, Any]] = dict,
    compression: type[Compressor] = Compression.none,
    grouped: bool = False,
) -> Any:
    """One operation on all leaves of a tree, or on a list of arrays; of an alltoall a list.

    Args:
        attributes: returns those of the Call. A mistake that it raises, as any other one that is found before the call,
            is an error of the other ranks' matching calls too.
    """
    names: list[Any] = [name]

    def name_in_this_program() -> None:
        names[0] = name_in_program(operation, name)

    with reported_for_each(operation, operation, names, process_set):
        if name is not None:
            names[0] = name = f"{name}"
        if traced := is_traced(()):  # first, so that a mistake is reported under the name in the program
            name_in_this_program()
        if grouped:
            tree = operations.members_of(tree, (jax.Array, np.ndarray))
        leaves, structure = jax.tree_util.tree_flatten(tree)
        if not traced and is_traced(leaves):
            name_in_this_program()
        if operation == "alltoall" and len(leaves) != 1:
            raise ValueError(f"alltoall takes one array, but found a tree of {len(leaves)}.")
        leaves = [_array(leaf) for leaf in leaves]
        given = attributes()
        for leaf in leaves:
            check(leaf, operation)
        wires = [compression.compress(leaf) for leaf in leaves]
        number = number_of(process_set)
        engine()
        # The engine refuses a set without this rank.
        ranks, rank = process_set.size() or 0, process_set.rank() or 0
        call = Call(operation, names[0], number, ranks, rank, **given)
    if not leaves:
        text = f"{operation}() was called there with an empty tree."
        send_failure(operation, names[0], process_set, text, operation)
        return tree
    results = collective(call, [wire for wire, _ in wires])
    if operation == "alltoall":
        return tuple(results)
    results = [compression.decompress(result, context) for result, (_, context) in zip(results, wires)]
    return jax.tree_util.tree_unflatten(structure, results)


def _array(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array):  # a Tracer too
        return leaf
    if isinstance(leaf, np.ndarray) and not is_traced(()):
        return leaf  # no copy to a device; types of 64 bits stay
    return jnp.asarray(leaf)
