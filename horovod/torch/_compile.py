"""The operations under torch.compile: the functions that it traces in place of those that call the engine.

The synchronous operations ask `tracing()` first; Dynamo knows the answer while it compiles, so that it costs nothing in
the graph. The functions here are traced, never run, and take the arguments of their namesakes in ``mpi_ops``: each leaves
one custom op (`_library`) in the graph. An operation in place becomes one that returns a new tensor, and a copy.
"""

from collections.abc import Callable, Sequence

import torch

from horovod.common.arguments import BOTH_GIVEN, Average
from horovod.common.process_sets import ProcessSet
from horovod.torch import _library
from horovod.torch._submit import resolve_op
from horovod.torch.compression import Compression
from hvd_core._frontend.operations import request_name
from hvd_core._frontend.rows import scattered_rows
from hvd_core._runtime.refusals import refuse


def _never() -> bool:
    return False


# True while Dynamo traces the caller.
tracing: Callable[[], bool] = _never
if _library.SUPPORTED:
    _library.register()
    tracing = torch.compiler.is_dynamo_compiling


def _number(process_set: ProcessSet) -> int:
    # A set that is not registered is refused when the graph runs, with the text of the eager operation.
    return -1 if process_set.process_set_id is None else process_set.process_set_id


def _reduction(operation, op, average, prescale_factor, postscale_factor, name, process_set) -> tuple:
    """The arguments of a reducing op behind its tensors."""
    if average is not None:
        if op is not None:
            refuse("allreduce", request_name(operation, name), process_set, BOTH_GIVEN)
        op = resolve_op(op, average)
    elif op is None:
        op = Average
    return op, prescale_factor, postscale_factor, name, _number(process_set)


def _each(
    call: Callable, tensors: Sequence[torch.Tensor], compression, arguments: tuple
) -> list[torch.Tensor]:
    """A grouped op on `tensors`, compressed."""
    if not len(tensors):
        return []
    pairs = [compression.compress(tensor) for tensor in tensors]
    results = call([tensor for tensor, _ in pairs], *arguments)
    return [compression.decompress(result, context) for result, (_, context) in zip(results, pairs)]


def allreduce(tensor, average, name, compression, op, prescale_factor, postscale_factor, process_set):
    arguments = _reduction("allreduce", op, average, prescale_factor, postscale_factor, name, process_set)
    compressed, context = compression.compress(tensor)
    return compression.decompress(torch.ops.horovod.allreduce(compressed, *arguments), context)


def allreduce_(tensor, average, name, op, prescale_factor, postscale_factor, process_set):
    arguments = _reduction("allreduce", op, average, prescale_factor, postscale_factor, name, process_set)
    with torch.no_grad():
        tensor.copy_(torch.ops.horovod.allreduce(tensor, *arguments))
    return tensor


def grouped_allreduce(
    tensors, average, name, compression, op, prescale_factor, postscale_factor, process_set
):
    arguments = _reduction(
        "grouped_allreduce", op, average, prescale_factor, postscale_factor, name, process_set
    )
    return _each(torch.ops.horovod.grouped_allreduce, tensors, compression, arguments)


def grouped_allreduce_(tensors, average, name, op, prescale_factor, postscale_factor, process_set):
    arguments = _reduction(
        "grouped_allreduce", op, average, prescale_factor, postscale_factor, name, process_set
    )
    tensors = list(tensors)
    with torch.no_grad():
        results = _each(torch.ops.horovod.grouped_allreduce, tensors, Compression.none, arguments)
        for tensor, result in zip(tensors, results):
            tensor.copy_(result)
    return tensors


def allgather(tensor, name, process_set):
    return torch.ops.horovod.allgather(tensor, name, _number(process_set))


def allgather_known(tensor, rows, name, process_set):
    """An allgather whose result has `rows` rows; it has no gradient."""
    return torch.ops.horovod.allgather_known(tensor, rows, name, _number(process_set))


def grouped_allgather(tensors, name, process_set):
    arguments = (name, _number(process_set))
    return _each(torch.ops.horovod.grouped_allgather, tensors, Compression.none, arguments)


def broadcast(tensor, root_rank, name, process_set):
    return torch.ops.horovod.broadcast(tensor, root_rank, name, _number(process_set))


def broadcast_(tensor, root_rank, name, process_set):
    with torch.no_grad():
        tensor.copy_(torch.ops.horovod.broadcast(tensor, root_rank, name, _number(process_set)))
    return tensor


def alltoall(tensor, splits, name, process_set):
    as_tensor = splits if splits is None or isinstance(splits, torch.Tensor) else torch.tensor(splits)
    output, received = torch.ops.horovod.alltoall(tensor, as_tensor, name, _number(process_set))
    if splits is None:
        return output
    return output, received if as_tensor is splits else received.to(torch.int32)


def _own_rows(tensor: torch.Tensor, process_set: ProcessSet) -> int:
    """How many rows of a reducescatter this rank gets; 0 also where the call will be refused. The number becomes part of
    the graph, and Dynamo compiles again when rank or size have changed."""
    size = process_set.size()
    if not size or not process_set.included() or not tensor.dim():
        return 0
    return scattered_rows(tensor.shape[0], size, process_set.rank())


def reducescatter(tensor, name, compression, op, process_set, prescale_factor, postscale_factor):
    arguments = _reduction("reducescatter", op, None, prescale_factor, postscale_factor, name, process_set)
    compressed, context = compression.compress(tensor)
    rows = _own_rows(tensor, process_set)
    return compression.decompress(torch.ops.horovod.reducescatter(compressed, rows, *arguments), context)


def grouped_reducescatter(tensors, name, compression, op, process_set, prescale_factor, postscale_factor):
    arguments = _reduction("reducescatter", op, None, prescale_factor, postscale_factor, name, process_set)
    rows = [_own_rows(tensor, process_set) for tensor in tensors]
    return _each(torch.ops.horovod.grouped_reducescatter, tensors, compression, (rows, *arguments))
