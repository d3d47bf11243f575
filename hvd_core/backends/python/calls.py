"""Turns a call from the C table into a call of a Python backend's method, and an exception into an error code.

Called on the communicator's thread (backend.py) only. Buffers become NumPy arrays on the tensors' own memory.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hvd_core.backends.errors import BackendCallError, BackendUnavailable
from hvd_core.types import COLLECTIVE_NAMES, DTYPE_NAMES, REDUCTION_NAMES

_AS_BITS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
_COMM_DEAD = 2  # HVD_EF_*
_NO_DEADLINE = 2**63 - 1
_LOG_WARN = 3


@dataclass(frozen=True)
class Call:
    """The properties that all buffers of a collective share. ``dtype`` names the element type, also if NumPy lacks the
    type and the arrays hold its bits."""

    coll: str
    dtype: str
    seq: int
    deadline: float | None  # in time.monotonic()'s seconds; None: no deadline

    def timeout(self) -> float | None:
        """Seconds left, for a socket or a lock; None without a deadline."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())


def seconds(deadline_ns: int) -> float | None:
    """A deadline of the C table in seconds; None for no deadline."""
    return None if deadline_ns in (0, _NO_DEADLINE) else deadline_ns / 1e9


def dispatch(target: Any, call: Any, comm: Any) -> None:
    """Call the method of ``target`` (a PythonCommunicator) for the collective ``call``. Raises what the method raises."""
    coll, dtype, op = COLLECTIVE_NAMES[call.coll], DTYPE_NAMES[call.dtype], REDUCTION_NAMES[call.op]
    method = getattr(target, coll)
    info = Call(coll, dtype, call.seq, seconds(call.deadline_ns))
    if coll == "barrier":
        return method(info)
    rank, size, counts = comm.rank, comm.size, call.counts
    numpy_type = np.dtype(_AS_BITS.get(dtype, dtype))
    factors = (call.prescale, call.postscale)

    def arrays(views: list[memoryview], lengths: Sequence[int]) -> list[np.ndarray]:
        views = views or [memoryview(b"")] * len(lengths)
        return [_array(view, numpy_type, length) for view, length in zip(views, lengths)]

    def by_rank(given: list[int], fallback: Any) -> list[list[int]]:
        if not given:
            return [[fallback(n)] * size for n in counts]
        return [given[i * size : (i + 1) * size] for i in range(len(counts))]

    inputs = outputs = ()
    if coll in ("allreduce", "reduce"):
        inputs = arrays(call.inputs, counts)
        if coll == "allreduce":
            return method(inputs, arrays(call.outputs, counts), op, *factors, info)
        outputs = arrays(call.outputs, [n if rank == call.root else 0 for n in counts])
        return method(inputs, outputs, op, call.root, *factors, info)
    if coll in ("broadcast", "send", "recv"):
        return method(
            _moved(coll, call, rank, counts, arrays), call.peer if coll != "broadcast" else call.root, info
        )
    if coll == "allgather":
        parts = by_rank(call.out_counts, lambda n: n)
        outputs = arrays(call.outputs, [sum(p) for p in parts])
        inputs = arrays(call.inputs, counts)
        for i, (given, gathered, part) in enumerate(zip(inputs, outputs, parts)):
            if given.size and _address(given) == _address(
                gathered
            ):  # in place: the input is a part of the output
                at = sum(part[:rank])
                inputs[i] = gathered[at : at + part[rank]]
        return method(inputs, outputs, parts, info)
    parts = by_rank(call.out_counts, lambda n: n // size)
    inputs = arrays(call.inputs, counts)
    if coll == "reducescatter":
        return method(inputs, arrays(call.outputs, [p[rank] for p in parts]), parts, op, *factors, info)
    in_parts = by_rank(call.in_counts, lambda n: n // size)
    return method(inputs, arrays(call.outputs, [sum(p) for p in parts]), in_parts, parts, info)


def _moved(coll: str, call: Any, rank: int, counts: list[int], arrays: Any) -> list[np.ndarray]:
    """The one list of buffers that a broadcast, send or recv works on."""
    if coll == "send" or (coll == "broadcast" and rank == call.root):
        buffers = arrays(call.inputs, counts)
        if coll == "broadcast":
            for given, view in zip(buffers, call.outputs):
                if (
                    given.size
                    and len(view)
                    and _address(given) != _address(kept := _array(view, given.dtype, given.size))
                ):
                    np.copyto(kept, given)
        return buffers
    return arrays(call.outputs, counts)


def _array(view: memoryview, dtype: np.dtype, length: int) -> np.ndarray:
    if length == 0:
        return np.empty(0, dtype)
    if len(view) < length * dtype.itemsize:
        raise BackendCallError(
            "INVALID", f"a buffer of {len(view)} bytes cannot hold {length} elements of {dtype}"
        )
    return np.frombuffer(view, dtype, length)


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


_BUILTIN = (
    (MemoryError, "NOMEM"),
    (NotImplementedError, "UNSUPPORTED"),
    (TimeoutError, "TIMEOUT"),
    ((ConnectionError, EOFError), "REMOTE"),
    (BackendUnavailable, "UNAVAILABLE"),
)


def failure(error: BaseException, table: Any) -> tuple[int, int, str]:
    """(code, flags, text) of an exception. An exception that has no error code of its own is logged with its
    traceback."""
    text = str(error) or type(error).__name__
    if not isinstance(error, BackendCallError):
        for kinds, code in _BUILTIN:
            if isinstance(error, kinds):
                error = BackendCallError(code, text)
                break
        else:
            if table is not None:
                lines = traceback.format_exception(type(error), error, error.__traceback__)
                table.log(_LOG_WARN, "its Python code raised:\n" + "".join(lines))
            error = BackendCallError("INTERNAL", f"{type(error).__name__}: {text}")
    harmless = error.name in ("INVALID", "UNSUPPORTED", "UNAVAILABLE")
    return error.code, 0 if harmless else _COMM_DEAD, str(error)
