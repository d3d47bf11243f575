"""The gradients of the operations. Each is again an operation, so that gradients of gradients exist. Any thread.

docs/write-a-front-end.md lists them. Outside of programs, and where no gradient is computed, JAX's rules are passed by.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from horovod.common.arguments import Average, Sum
from horovod.jax._calls import Call, perform
from horovod.jax._trace import is_traced
from hvd_core._frontend.reductions import ENGINE_NUMBERS

_AVERAGE, _SUM = ENGINE_NUMBERS[Average], ENGINE_NUMBERS[Sum]


def collective(call: Call, arrays: list) -> list:
    """The results of an operation, which can be differentiated. An alltoall with splits has a second result: the rows
    from each rank."""
    if not is_traced(arrays):
        return _with_received(*perform(call, arrays))
    return list(_differentiable(call, *arrays))


def _with_received(results: list, received: list[int] | None) -> list:
    return results if received is None else [*results, jnp.asarray(np.array(received, np.int32))]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _differentiable(call: Call, *arrays: Any) -> tuple:
    return tuple(_with_received(*perform(call, list(arrays))))


def _forward(call: Call, *arrays: Any) -> tuple:
    rows = tuple(array.shape[0] if array.ndim else 0 for array in arrays)
    results = tuple(collective(call, list(arrays)))  # can be differentiated again
    received = None if call.splits is None else results[-1]
    return results, (rows, received)


def _backward(call: Call, residuals: tuple, incoming: tuple) -> tuple:
    rows, received = residuals
    incoming = incoming[: len(rows)]
    # Integers have no gradient: JAX has a type without values for it.
    places = [i for i, g in enumerate(incoming) if g.dtype != jax.dtypes.float0]
    results = list(incoming)
    if places:
        found = _RULES[call.operation](
            call, [incoming[i] for i in places], [rows[i] for i in places], received
        )
        for place, gradient in zip(places, found):
            results[place] = gradient
    return tuple(results)


_differentiable.defvjp(_forward, _backward)


def _of_allreduce(call: Call, incoming: list, rows: list, received: Any) -> list:
    return collective(call.as_gradient(), incoming)


def _of_broadcast(call: Call, incoming: list, rows: list, received: Any) -> list:
    # The zeros of the other ranks are made by the call: of zeros in the program the compiler would see that the call's
    # result is not used, and leave it out.
    return collective(call.as_gradient("allreduce", reduce_op=_AVERAGE), incoming)


def _of_allgather(call: Call, incoming: list, rows: list, received: Any) -> list:
    if is_traced(incoming):  # equally many rows on all ranks
        return collective(call.as_gradient("reducescatter", reduce_op=_AVERAGE, total_rows=None), incoming)
    averages = collective(call.as_gradient("allreduce", reduce_op=_AVERAGE), incoming)
    counts = call.as_gradient()
    counts = counts if counts.name is None else counts.as_gradient()
    (before,) = collective(counts, [jnp.asarray([rows], np.int32)])
    starts = np.asarray(before)[: call.rank].sum(axis=0, dtype=np.int64)
    return [average[start : start + n] for average, start, n in zip(averages, starts, rows)]


def _of_alltoall(call: Call, incoming: list, rows: list, received: Any) -> list:
    splits = None if received is None else tuple(np.asarray(received).tolist())
    sent_back = collective(call.as_gradient(splits=splits), incoming)[:1]
    missing = rows[0] - sent_back[0].shape[0]  # rows that were not sent
    if missing:
        padding = [(0, missing)] + [(0, 0)] * (sent_back[0].ndim - 1)
        return [jnp.pad(sent_back[0], padding)]
    return sent_back


def _of_reducescatter(call: Call, incoming: list, rows: list, received: Any) -> list:
    factor = call.prescale * call.postscale * (call.ranks if call.reduce_op == _SUM else 1)
    gathered = []
    plain = {"reduce_op": 0, "prescale": 1.0, "postscale": 1.0}
    for i, (gradient, total) in enumerate(zip(incoming, rows)):
        # One by one, as each has its number of rows in a program.
        own = call.as_gradient("allgather", total_rows=total, **plain)
        if len(incoming) > 1 and own.name is not None:
            own = Call(**{**vars(own), "name": f"{own.name}.{i}"})
        gathered += collective(own, [gradient])
    if factor == 1.0:
        return gathered
    return [(g * factor).astype(g.dtype) for g in gathered]


_RULES = {
    "allreduce": _of_allreduce,
    "broadcast": _of_broadcast,
    "allgather": _of_allgather,
    "alltoall": _of_alltoall,
    "reducescatter": _of_reducescatter,
}
