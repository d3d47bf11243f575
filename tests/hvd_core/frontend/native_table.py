"""The table of hvd/frontend_abi.h through ctypes, as a front end in C sees it: structures, calls and their results.

`Table` gives blocking and non-blocking calls on NumPy arrays; a `Pending` remembers how often and with what its done()
was called.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

ALLREDUCE, ALLGATHER, BROADCAST, BARRIER, ALLTOALL, REDUCESCATTER, JOIN = range(7)
SUM, PROD, MIN, MAX, AVG = range(5)
ADASUM = 100
OK, INVALID_ARGUMENT, FAILED_PRECONDITION, ABORTED, UNKNOWN = range(5)
NAMES = ("uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64", "bool")
NUMBERS = {np.dtype(name): number for number, name in enumerate(NAMES)}
NUMBERS |= {np.dtype("uint32"): 13, np.dtype("uint64"): 14}
DTYPES = {number: dtype for dtype, number in NUMBERS.items()}


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("device_type", ctypes.c_char_p),
        ("device_id", ctypes.c_int32),
        ("has_stream", ctypes.c_int32),
        ("stream", ctypes.c_void_p),
    )


class Result(ctypes.Structure):
    pass


COPY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(Result), ctypes.c_int32, ctypes.POINTER(Tensor))
Result._fields_ = (
    ("struct_size", ctypes.c_uint32),
    ("status", ctypes.c_int32),
    ("message", ctypes.c_char_p),
    ("n_outputs", ctypes.c_int32),
    ("outputs", ctypes.POINTER(Tensor)),
    ("n_received", ctypes.c_int32),
    ("received_splits", ctypes.POINTER(ctypes.c_int64)),
    ("last_joined", ctypes.c_int32),
    ("lingers", ctypes.c_int32),
    ("copy", COPY),
    ("context", ctypes.c_void_p),
)
DONE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(Result))


class Call(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("op", ctypes.c_int32),
        ("name", ctypes.c_char_p),
        ("process_set", ctypes.c_int32),
        ("reduce_op", ctypes.c_int32),
        ("root_rank", ctypes.c_int32),
        ("n", ctypes.c_int32),
        ("prescale", ctypes.c_double),
        ("postscale", ctypes.c_double),
        ("inputs", ctypes.POINTER(Tensor)),
        ("outputs", ctypes.POINTER(Tensor)),
        ("splits", ctypes.POINTER(ctypes.c_int64)),
        ("n_splits", ctypes.c_int32),
        ("urgent", ctypes.c_int32),
        ("done", DONE),
        ("arg", ctypes.c_void_p),
        ("staged_from", ctypes.c_char_p),
        ("stay_ns", ctypes.c_int64),
    )


_CALLS = ctypes.CFUNCTYPE(None, ctypes.POINTER(Call))
_ASK = ctypes.CFUNCTYPE(ctypes.c_int32)
_ASK_SET = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32)


class RawTable(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("version", ctypes.c_uint32),
        ("submit", _CALLS),
        ("run", _CALLS),
        (
            "poison",
            ctypes.CFUNCTYPE(
                None, ctypes.c_int32, ctypes.c_int32, ctypes.c_char_p, ctypes.c_int32, ctypes.c_char_p
            ),
        ),
        ("rank", _ASK),
        ("size", _ASK),
        ("local_rank", _ASK),
        ("local_size", _ASK),
        ("process_set_rank", _ASK_SET),
        ("process_set_size", _ASK_SET),
        ("scattered_rows", ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int32)),
        ("serves", ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_char_p)),
    )


class Pending:
    """One call. Keeps all memory that it needs; `times` counts its done()s."""

    def __init__(self, keep: Any, then: Callable[[Pending], None] | None) -> None:
        self.keep, self.then = keep, then
        self.times, self.status, self.message = 0, None, None
        self.outputs: list[np.ndarray] = []
        self.received: list[int] | None = None
        self.last_joined, self.lingers, self.thread = -1, 0, None
        self.over = threading.Event()
        self.callback = DONE(self._done)

    def _done(self, _: Any, pointer: Any) -> None:
        r = pointer.contents
        self.times += 1
        self.status, self.message = r.status, r.message.decode()
        self.last_joined, self.lingers = r.last_joined, r.lingers
        self.thread = threading.get_native_id()
        self.take(pointer)
        if r.received_splits:
            self.received = r.received_splits[: r.n_received]
        if self.then:
            self.then(self)
        self.over.set()

    def take(self, pointer: Any) -> None:
        r = pointer.contents
        for i in range(r.n_outputs):
            t = r.outputs[i]
            array = np.empty(t.shape[: t.ndim], DTYPES[t.dtype])
            target, _kept = tensor_of(array)
            code = r.copy(pointer, i, ctypes.byref(target))
            assert code == OK, code
            self.outputs.append(array)

    def result(self, seconds: float = 60) -> Pending:
        assert self.over.wait(seconds), "no done() came"
        return self

    def ok(self, seconds: float = 60) -> Pending:
        self.result(seconds)
        assert self.status == OK, (self.status, self.message)
        return self


def tensor_of(array: np.ndarray) -> tuple[Tensor, Any]:
    """The structure, and the objects that have to live as long."""
    assert array.flags.c_contiguous
    shape = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)
    t = Tensor(array.ctypes.data, shape, array.ndim, NUMBERS[array.dtype], None, 0, 0, None)
    return t, (array, shape)


class Table:
    def __init__(self, address: int) -> None:
        self.raw = RawTable.from_address(address)
        assert self.raw.struct_size == ctypes.sizeof(RawTable), self.raw.struct_size

    def call(
        self,
        verb: str,
        op: int,
        inputs: Sequence[Any] = (),
        outputs: Sequence[Any] | None = None,
        name: str | None = None,
        process_set: int = 0,
        reduce_op: int = SUM,
        root: int = 0,
        prescale: float = 1.0,
        postscale: float = 1.0,
        splits: Sequence[int] | None = None,
        urgent: bool = False,
        staged_from: bytes | None = None,
        stay_ns: int = 0,
        struct_size: int = ctypes.sizeof(Call),
        then: Callable[[Pending], None] | None = None,
    ) -> Pending:
        """`verb` is submit or run; tensors are arrays, or pairs of a Tensor and the objects that have to live as long."""
        keep: list[Any] = []

        def listed(tensors: Sequence[Any] | None) -> Any:
            if tensors is None:
                return None
            pairs = [tensor_of(t) if isinstance(t, np.ndarray) else t for t in tensors]
            keep.append(pairs)
            return (Tensor * max(len(pairs), 1))(*[pair[0] for pair in pairs])

        pending = Pending(keep, then)
        rows = None if splits is None else (ctypes.c_int64 * max(len(splits), 1))(*splits)
        c = Call(
            struct_size,
            op,
            None if name is None else name.encode(),
            process_set,
            reduce_op,
            root,
            len(inputs),
            prescale,
            postscale,
            listed(inputs),
            listed(outputs),
            rows,
            0 if splits is None else len(splits),
            int(urgent),
            pending.callback,
            None,
            staged_from,
            stay_ns,
        )
        getattr(self.raw, verb)(ctypes.byref(c))
        return pending

    def submit(self, op: int, *args: Any, **options: Any) -> Pending:
        return self.call("submit", op, *args, **options)

    def run(self, op: int, *args: Any, **options: Any) -> Pending:
        pending = self.call("run", op, *args, **options)
        assert pending.times == 1, f"run() returned after {pending.times} done()s"
        return pending
