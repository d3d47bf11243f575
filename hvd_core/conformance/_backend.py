"""A backend opened the way the engine opens it, and the host's side of the border in ctypes.

Nothing of the engine takes part: struct sizes, absent slots and every byte around them are under the kit's control.
One Backend per process; calls from any thread.
"""

from __future__ import annotations

import ctypes as C
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from hvd_core._base.sockets import BootstrapTimeout
from hvd_core.conformance import _abi
from hvd_core.conformance._abi import (
    ERR,
    INPROGRESS,
    OK,
    TIMEOUT,
    UNAVAILABLE,
    BackendApi,
    CollArgs,
    CollCaps,
    CommApi,
    DeviceApi,
    Error,
    HostApi,
    P,
    new,
    rc,
)

__all__ = ["INPROGRESS", "OK", "Backend", "BackendFailure", "Host", "P", "code_name", "deadline", "has_slot"]


# ---- the watch over calls: one that does not return is named, and ends its case and its process -----------------------

# Calls that may wait for other ranks or for a device until their deadline, which is at most 25 s away.
WAITING = frozenset(
    [
        "create",
        "create_test",
        "split",
        "finalize",
        "collective",
        "group_end",
        "req_wait",
        "stream_sync",
        "event_wait",
    ]
)
WAITING_S, PROMPT_S = 45.0, 15.0
_LOOK_S = 0.25


class Calls:
    """The calls that run now, and the longest of each slot so far. Any thread."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[str, float]] = {}
        self.longest: dict[str, float] = {}

    def running(self, slot: str) -> _Call:
        """The calling thread is in a call of ``slot`` inside of the block."""
        return _Call(self, slot)

    def stuck(self, patience: float) -> str:
        """The slot whose call has exceeded its limit, in words; "" if there is no such call."""
        now = time.monotonic()
        for slot, began in list(self._running.values()):
            limit = (WAITING_S if slot in WAITING else PROMPT_S) * patience
            if now - began > limit:
                return f"the call {slot} has not come back within {limit:g} s"
        return ""


class _Call:
    """One call, as a context. It is a class because the kit makes a hundred thousand calls, and a generator costs more
    than many of them."""

    __slots__ = ("_began", "_calls", "_slot", "_thread")

    def __init__(self, calls: Calls, slot: str) -> None:
        self._calls, self._slot = calls, slot

    def __enter__(self) -> None:
        self._thread, self._began = threading.get_native_id(), time.monotonic()
        self._calls._running[self._thread] = (self._slot, self._began)

    def __exit__(self, *_: object) -> None:
        self._calls._running.pop(self._thread, None)
        took, longest = time.monotonic() - self._began, self._calls.longest
        if took >= longest.get(self._slot, 0.0):
            longest[self._slot] = took


def watch(calls: Calls, patience: float, report: Callable[[str], None]) -> None:
    """Start the thread that looks at the calls. ``report`` gets the words for the first call that is stuck, on that
    thread, and must end the process."""

    def look() -> None:
        while not (words := calls.stuck(patience)):
            time.sleep(_LOOK_S)
        report(words)

    threading.Thread(target=look, name="hvd-kit-watch", daemon=True).start()


class BackendFailure(Exception):
    """A slot returned a code that the contract does not allow here. ``code``, ``flags``, ``text``: its answer."""

    def __init__(self, what: str, code: int, text: str = "", flags: int = 0) -> None:
        self.code, self.text, self.flags = code, text, flags
        super().__init__(f"{what} answered {code_name(code)}" + (f": {self.text}" if self.text else ""))


def _failure(what: str, code: int, error: Error) -> BackendFailure:
    return BackendFailure(what, code, error.text.decode(errors="replace"), error.flags)


def code_name(code: int) -> str:
    """``TIMEOUT`` for 6; ``code 77`` for a number that the header does not have."""
    return _abi.CODES[code] if 0 <= code < len(_abi.CODES) else f"code {code}, which the ABI does not define"


def deadline(seconds: float) -> int:
    """An absolute CLOCK_MONOTONIC deadline that many seconds from now, in nanoseconds."""
    return time.monotonic_ns() + int(seconds * 1e9)


Phase = tuple[int | None, int, str, int]
"""(communicator, seq, phase, 1 at its begin or 0 at its end) of a call of ``activity``."""


class Host:
    """The table that the backend is handed: log, store, options, thread names.

    ``store`` has set, get, add and delete (hvd_core._bootstrap.store.StoreClient), or is None for a process alone.
    """

    def __init__(self, name: str, store: Any = None) -> None:
        self.logged: list[tuple[int, str]] = []
        self.notified: list[int] = []
        self.tokens: set[int] = set()  # the notify_tokens of communicators
        self.phases: list[Phase] = []
        # Announced threads, the kit's own threads that call the backend, and the calls of all other threads.
        self.entered: set[int] = set()
        self.callers: set[int] = set()
        self.unannounced: list[str] = []
        self.keys: list[tuple[str, str]] = []  # ("set" or "del", key), in order
        self._store, self._prefix = store, f"HOROVOD_BACKEND_{name.upper()}_"
        self._scopes: dict[int, str] = {}
        self._lock = threading.Lock()
        self.table = new(HostApi)
        self.table.log = _abi.LOG(self._log)
        self.table.store_set = _abi.STORE_SET(self._set)
        self.table.store_get = _abi.STORE_GET(self._get)
        self.table.store_add = _abi.STORE_ADD(self._add)
        self.table.store_del = _abi.STORE_DEL(self._del)
        self.table.option = _abi.OPTION(self._option)
        self.table.thread_enter = _abi.THREAD_ENTER(self._thread_enter)
        self.table.activity = _abi.ACTIVITY(self._activity)
        self.table.notify = _abi.NOTIFY(self._notify)

    def scope(self, prefix: str) -> int:
        """The ``store`` argument of a communicator: keys with ``prefix``."""
        with self._lock:
            token = len(self._scopes) + 1
            self._scopes[token] = prefix
            return token

    def token(self) -> int:
        """A notify_token for one more communicator."""
        with self._lock:
            self.tokens.add(0x7000 + len(self.tokens))
            return 0x7000 + len(self.tokens) - 1

    def _called(self, slot: str) -> None:
        thread = threading.get_native_id()
        if thread not in self.entered and thread not in self.callers:
            self.unannounced.append(f"{slot} is called by a thread that has not announced itself")

    def _thread_enter(self, role: bytes | None) -> None:
        self.entered.add(threading.get_native_id())

    def _activity(self, comm: int | None, seq: int, phase: bytes | None, begin_end: int) -> None:
        self._called("activity")
        self.phases.append((comm, seq, (phase or b"").decode(errors="replace"), begin_end))

    def _notify(self, token: int | None) -> None:
        self._called("notify")
        self.notified.append(token or 0)

    def _log(self, level: int, file: bytes, line: int, text: bytes) -> None:
        self._called("log")
        self.logged.append((level, (text or b"").decode(errors="replace")))

    def _key(self, store: int | None, key: bytes) -> str:
        return f"{self._scopes[store or 0]}/{key.decode()}"

    def _set(self, store: int | None, key: bytes, p: int, n: int, error: Any) -> int:
        self._called("store_set")

        def put() -> None:
            self.keys.append(("set", self._key(store, key)))
            self._store.set(self._key(store, key), C.string_at(p, n))

        return self._answer(error, put)

    def _get(self, store: int | None, key: bytes, p: int, n: Any, deadline_ns: int, error: Any) -> int:
        self._called("store_get")

        def get() -> int:
            left = (deadline_ns - time.monotonic_ns()) / 1e9 if deadline_ns else 60.0
            value = self._store.get(self._key(store, key), max(0.0, min(left, 3600.0)))
            return _fill(p, n, value)

        return self._answer(error, get)

    def _add(self, store: int | None, key: bytes, delta: int, now: Any, error: Any) -> int:
        def add() -> None:
            self.keys.append(("set", self._key(store, key)))
            now[0] = self._store.add(self._key(store, key), delta)

        return self._answer(error, add)

    def _del(self, store: int | None, key: bytes, error: Any) -> int:
        def delete() -> None:
            self.keys.append(("del", self._key(store, key)))
            self._store.delete(self._key(store, key))

        return self._answer(error, delete)

    def _option(self, key: bytes, text: int, n: Any) -> int:
        value = os.environ.get(self._prefix + key.decode().upper())
        return UNAVAILABLE if value is None else _fill(text, n, value.encode() + b"\0")

    @staticmethod
    def _answer(error: Any, action: Callable[[], int | None]) -> int:
        try:
            return action() or OK
        except BootstrapTimeout as late:
            code, text = TIMEOUT, str(late)
        except Exception as problem:  # no exception may leave a callback
            code, text = _abi.REMOTE, f"{type(problem).__name__}: {problem}"
        if error:
            error[0].code, error[0].text = code, text.encode()[:900]
        return code


def _fill(p: int, n: Any, value: bytes) -> int:
    """Copies a value to a buffer of n[0] bytes; n[0] becomes its size."""
    room, n[0] = n[0], len(value)
    if len(value) > room:
        return _abi.INVALID
    C.memmove(p, value, len(value))
    return OK


ENTRY = C.CFUNCTYPE(rc, C.POINTER(HostApi), C.POINTER(C.POINTER(BackendApi)), ERR)


class Backend:
    """A loaded backend. ``path`` is a library's, or "entry:0x..." with an entry function's address in this process.

    ``comm`` and ``device`` are its tables, None for a table that it lacks. Raises OSError when the library does not
    open, AttributeError without the entry symbol, BackendFailure when the entry function refuses.
    """

    def __init__(self, name: str, path: str, store: Any = None, calls: Calls | None = None) -> None:
        self.name, self.path, self.host = name, str(path), Host(name, store)
        self.calls = calls or Calls()
        if self.path.startswith("entry:"):
            self.entry = ENTRY(int(self.path[6:], 16))
        else:
            self.library = C.CDLL(self.path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
            self.entry = ENTRY(("hvd_backend_entry_v1", self.library))
        table, error = C.POINTER(BackendApi)(), new(Error)
        self.host.callers.add(threading.get_native_id())
        with self.calls.running("hvd_backend_entry_v1"):
            code = self.entry(C.byref(self.host.table), C.byref(table), C.byref(error))
        if code != OK:
            raise _failure("hvd_backend_entry_v1", code, error)
        if not table:
            raise BackendFailure("hvd_backend_entry_v1 (OK, but no table)", _abi.ABI)
        self.table = table
        self.api = table.contents
        self.comm: CommApi | None = self.api.comm.contents if self.api.comm else None
        self.device: DeviceApi | None = self.api.device.contents if self.api.device else None

    @property
    def comm_api(self) -> CommApi:
        """The communicator table, in a case that has called ``need_comm()``."""
        assert self.comm is not None
        return self.comm

    @property
    def device_api(self) -> DeviceApi:
        """The device table, in a case that has called ``need_device()``."""
        assert self.device is not None
        return self.device

    @property
    def caps(self) -> int:
        """The communicator table's capabilities; 0 without one."""
        return int(self.comm.caps) if self.comm else 0

    def has(self, table: str, slot: str) -> bool:
        """Whether the device or comm table reaches as far as the slot and fills it."""
        return has_slot(getattr(self, table), slot)

    def call(self, table: str, slot: str, *args: Any, allowed: tuple[int, ...] = (OK,)) -> int:
        """Calls a slot with an error struct added. Raises BackendFailure for an answer that is not allowed."""
        error = new(Error)
        self.host.callers.add(threading.get_native_id())
        function = getattr(getattr(self, table), slot)
        with self.calls.running(slot):
            code: int = function(*args, C.byref(error))
        if code not in allowed:
            raise _failure(slot, code, error)
        return code

    def query(
        self,
        coll: int,
        dtype: int,
        op: int,
        size: int = 2,
        varying: bool = False,
        comm: P | None = None,
        factors: tuple[float, float] = (0.0, 0.0),
    ) -> CollCaps:
        """The answer of query for one element per rank, with the engine's arguments. INVALID and UNSUPPORTED count as
        unserved."""
        args, caps = new(CollArgs), new(CollCaps)
        keep: list[Any] = []
        args.coll, args.dtype, args.op = coll, dtype, op
        args.prescale, args.postscale = factors
        if coll != _abi.BARRIER:
            divided = coll in (_abi.REDUCESCATTER, _abi.ALLTOALL)
            empty, ones = (_abi.Buf * 1)(), (C.c_uint64 * size)(*[1] * size)
            count = (C.c_uint64 * 1)(size if divided else 1)
            keep += [empty, ones, count]
            args.n_bufs, args.in_, args.out, args.counts = 1, empty, empty, count
            if varying:
                args.out_counts = ones
                if coll == _abi.ALLTOALL:
                    args.in_counts = ones
        code = self.call(
            "comm", "query", comm, C.byref(args), C.byref(caps), allowed=(OK, _abi.INVALID, _abi.UNSUPPORTED)
        )
        return caps if code == OK else new(CollCaps)


def has_slot(table: C.Structure | None, slot: str) -> bool:
    """HVD_HAS: the table is there, reaches as far as the slot, and fills it."""
    if table is None:
        return False
    field = getattr(type(table), slot)
    return table.hdr.struct_size >= field.offset + field.size and bool(getattr(table, slot))
