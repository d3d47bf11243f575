"""Backends written in Python, for prototypes and for tests that need a backend to fail.

A backend is a class that makes communicators. ``entry_of`` gives it the same C table as any other backend, and
``register_python_backend`` makes it available by its name. Such a backend serves host memory only and is never chosen
automatically. Any thread may call these functions. Each communicator has a thread of its own that calls its methods,
except ``abort``; all of these methods may block.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hvd_core.backends._candidate import NAME
from hvd_core.backends._options import Option, read_option
from hvd_core.backends.errors import BackendCallError, BackendUnavailable
from hvd_core.types import COLLECTIVE_NAMES, DTYPE_NAMES, REDUCTION_NAMES

if TYPE_CHECKING:
    from hvd_core._core import PythonBackendCall, PythonBackendComm, PythonBackendTable

Array: TypeAlias = "npt.NDArray[Any]"

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


def dispatch(target: Any, call: PythonBackendCall, comm: PythonBackendComm) -> None:
    """Call the method of ``target`` (a PythonCommunicator) for the collective ``call``. Raises what the method raises."""
    coll, dtype, op = COLLECTIVE_NAMES[call.coll], DTYPE_NAMES[call.dtype], REDUCTION_NAMES[call.op]
    method: Callable[..., None] = getattr(target, coll)
    info = Call(coll, dtype, call.seq, seconds(call.deadline_ns))
    if coll == "barrier":
        return method(info)
    rank, size, counts = comm.rank, comm.size, call.counts
    numpy_type = np.dtype(_AS_BITS.get(dtype, dtype))
    factors = (call.prescale, call.postscale)

    def arrays(views: list[memoryview], lengths: Sequence[int]) -> list[Array]:
        views = views or [memoryview(b"")] * len(lengths)
        return [_array(view, numpy_type, length) for view, length in zip(views, lengths)]

    def by_rank(given: list[int], fallback: Callable[[int], int]) -> list[list[int]]:
        if not given:
            return [[fallback(n)] * size for n in counts]
        return [given[i * size : (i + 1) * size] for i in range(len(counts))]

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


def _moved(
    coll: str,
    call: PythonBackendCall,
    rank: int,
    counts: list[int],
    arrays: Callable[[list[memoryview], Sequence[int]], list[Array]],
) -> list[Array]:
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


def _array(view: memoryview, dtype: np.dtype[Any], length: int) -> Array:
    if length == 0:
        return np.empty(0, dtype)
    if len(view) < length * dtype.itemsize:
        raise BackendCallError(
            "INVALID", f"a buffer of {len(view)} bytes cannot hold {length} elements of {dtype}"
        )
    return np.frombuffer(view, dtype, length)


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


_BUILTIN = (
    (MemoryError, "NOMEM"),
    (NotImplementedError, "UNSUPPORTED"),
    (TimeoutError, "TIMEOUT"),
    ((ConnectionError, EOFError), "REMOTE"),
    (BackendUnavailable, "UNAVAILABLE"),
)


def failure(error: BaseException, table: PythonBackendTable | None) -> tuple[int, int, str]:
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


_REDUCING = ("allreduce", "reduce", "reducescatter")
_VECTORED, _ONE_HOST = 1 << 2, 1 << 6  # HVD_CAP_*


_log = logging.getLogger("horovod")


class Store:
    """The part of the job's key-value store that belongs to one communicator. Usable only while ``create`` runs."""

    def __init__(self, comm: PythonBackendComm) -> None:
        self._comm = comm

    def set(self, key: str, value: bytes) -> None:
        """Set the value of a key, or replace it."""
        self._comm.store_set(key, bytes(value))

    def get(self, key: str, deadline: float | None = None) -> bytes:
        """Wait until the key exists and return its value. Raises BackendCallError TIMEOUT at ``deadline``
        (time.monotonic()), at the latest at the deadline of ``create``."""
        return self._comm.store_get(key, _NO_DEADLINE if deadline is None else int(deadline * 1e9))

    def add(self, key: str, delta: int) -> int:
        """Add ``delta`` to a counter that starts at 0, and return its new value."""
        return self._comm.store_add(key, delta)

    def delete(self, key: str) -> None:
        """Remove the key, if it is there."""
        self._comm.store_del(key)


class PythonCommunicator:
    """Base class of communicators. A subclass serves the collectives for which it defines a method:

    * ``allreduce(inputs, outputs, op, prescale, postscale, call)``
    * ``reduce(inputs, outputs, op, root, prescale, postscale, call)``: outputs count on the root only
    * ``broadcast(buffers, root, call)``: the root's are sent, all others' are filled
    * ``allgather(inputs, outputs, counts, call)``: ``counts[i][r]`` elements of ``outputs[i]`` come from rank r
    * ``reducescatter(inputs, outputs, counts, op, prescale, postscale, call)``: rank r gets ``counts[i][r]`` elements
    * ``alltoall(inputs, outputs, in_counts, out_counts, call)``: ``in_counts[i][r]`` to, ``out_counts[i][r]`` from r
    * ``send(buffers, peer, call)``, ``recv(buffers, peer, call)``, ``barrier(call)``

    Buffers are lists of one-dimensional NumPy arrays, of one array unless the backend is vectored. The arrays lie on the
    tensors' own memory and must not be used after the method returns. Element types that NumPy lacks are passed as bits
    (``call.dtype`` has the name). ``op`` is the name of a reduction (``hvd_core.types.REDUCTIONS``). Factors are never 0.
    All ranks call the same collectives in the same order.
    """

    def abort(self) -> None:
        """Make a running method fail soon. Called on another thread at any time; must not block."""

    def destroy(self) -> None:
        """Release all resources. Called once, after the last collective; ranks need not call it together."""


class PythonBackend:
    """Base class of backends. A subclass sets the attributes, and usually overrides no method."""

    name = ""
    version = "0"
    communicator: type = PythonCommunicator
    dtypes: Collection[str] | None = None  # served types; None: all
    reductions: Collection[str] | None = None  # served reductions; None: all
    vectored = False  # takes several buffers in one call
    one_host = False  # all ranks of a communicator must share a host
    max_count = 0  # elements in one call; 0: no limit
    options: Sequence[Option] = ()  # read them with self.option()

    def serves(self, coll: str, dtype: str, op: str) -> bool:
        """Whether the backend serves the collective for this element type and reduction. Collectives that only move data
        ignore ``op``; a barrier ignores both. Called once for every combination, at registration. Must return the same on
        all ranks. The engine composes collectives that are not served from those that are."""
        return (
            callable(getattr(self.communicator, coll, None))
            and (coll == "barrier" or self.dtypes is None or dtype in self.dtypes)
            and (coll not in _REDUCING or self.reductions is None or op in self.reductions)
        )

    def option(self, name: str) -> Any:
        """The value of a declared option, from its variable or its default. Raises ValueError for a value out of range or
        of the wrong type."""
        return read_option(self.name, next(o for o in self.options if o.name == name))

    def create(
        self,
        key: str,
        store: Store,
        ranks: Sequence[int],
        hosts: Sequence[int],
        rank: int,
        size: int,
        deadline: float,
    ) -> Any:
        """Make this process's end of a communicator; all members make theirs at the same time. ``key`` is unique in the
        job; ``ranks`` and ``hosts`` hold each member's global rank and host; ``deadline`` is in time.monotonic()'s
        seconds."""
        return self.communicator(key, store, ranks, hosts, rank, size, deadline)


class RegisteredBackend:
    """A backend class with its C table. Both live as long as the process."""

    def __init__(self, backend: PythonBackend) -> None:
        from hvd_core._core import PythonBackendTable

        self.backend = backend
        self.name: str = backend.name
        self._table = PythonBackendTable(
            name=backend.name,
            version=str(backend.version),
            caps=_VECTORED * bool(backend.vectored) | _ONE_HOST * bool(backend.one_host),
            max_count=backend.max_count,
            serves=lambda coll, dtype, op: bool(
                backend.serves(COLLECTIVE_NAMES[coll], DTYPE_NAMES[dtype], REDUCTION_NAMES[op])
            ),
            options=[o.texts() for o in backend.options],
        )
        self._pid = 0

    @property
    def entry_address(self) -> int:
        """Address of a function that is called like ``hvd_backend_entry_v1``."""
        self._start()
        return self._table.entry_address

    @property
    def path(self) -> str:
        """The text that the engine's loader takes in place of a library's path."""
        return f"entry:{self.entry_address:#x}"

    def _start(self) -> None:
        if self._pid == os.getpid():
            return
        if self._pid:
            self._table.reset_after_fork()
        self._pid = os.getpid()
        _start_thread(_manage, self.backend, self._table)


_lock = threading.RLock()
_made: dict[type, RegisteredBackend] = {}


def entry_of(cls: type[PythonBackend]) -> RegisteredBackend:
    """Give the class a C table, so that it can be loaded by the result's ``path``. This does not make it available by its
    name. The same class gives the same object. Raises ValueError if ``cls`` is not a subclass of PythonBackend, or if its
    name is not valid.
    """
    with _lock:
        if cls in _made:
            return _made[cls]
        if not (isinstance(cls, type) and issubclass(cls, PythonBackend)):
            raise ValueError(f"register_python_backend() takes a subclass of PythonBackend, not {cls!r}")
        if not NAME.fullmatch(cls.name or ""):
            raise ValueError(
                f"{cls.__qualname__}.name is {cls.name!r}; a backend's name is 1 to 32 characters of a-z, 0-9, '_', '-'"
            )
        return _made.setdefault(cls, RegisteredBackend(cls()))


# ---------------------------------------------------------------------------------------------------- the threads


def _start_thread(target: Any, *args: Any) -> None:
    # Daemon threads: they sleep while the process lives, and must not keep it alive.
    threading.Thread(target=target, args=args, daemon=True, name=f"hvd-{args[0].name}").start()


def _manage(backend: PythonBackend, table: PythonBackendTable) -> None:
    """Start the threads of communicators, and call ``abort``, for which those threads may be too busy."""
    live: dict[int, Any] = {}
    while True:
        _manage_next(backend, table, live)  # a function of its own, so that nothing is held during the wait


def _manage_next(backend: PythonBackend, table: PythonBackendTable, live: dict[int, Any]) -> None:
    task, comm = table.next_task()
    if task == "open":
        try:
            _start_thread(_run, backend, table, comm, live)
        except RuntimeError as error:  # the interpreter is ending, or the limit of threads is reached
            comm.opened(*failure(error, table))
            comm.gone()
    elif (target := live.get(comm.number)) is not None:
        _quietly("abort", target, table)


def _run(
    backend: PythonBackend, table: PythonBackendTable, comm: PythonBackendComm, live: dict[int, Any]
) -> None:
    """Run one communicator from its creation to its end, on its own thread."""
    comm.enter_thread()
    deadline = seconds(comm.deadline_ns)
    if deadline is None:
        deadline = time.monotonic() + 60.0
    try:
        target = backend.create(comm.key, Store(comm), comm.ranks, comm.hosts, comm.rank, comm.size, deadline)
    except BaseException as error:
        comm.opened(*failure(error, table))
        comm.gone()
        return
    live[comm.number] = target
    if comm.opened(0, 0, ""):
        while (call := comm.next_call()) is not None:
            try:
                dispatch(target, call, comm)
                outcome = (0, 0, "")
            except BaseException as error:
                outcome = failure(error, None if comm.aborted else table)
            comm.finished(call, *outcome)
    del live[comm.number]
    _quietly("destroy", target, table)
    del target
    comm.gone()


def _quietly(what: str, target: object, table: PythonBackendTable) -> None:
    method = getattr(target, what, None)
    try:
        if method is not None:
            method()
    except BaseException:
        table.log(_LOG_WARN, f"{what}() failed:\n{traceback.format_exc()}")
