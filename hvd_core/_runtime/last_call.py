"""What a rank does in backends, noted in memory that its launcher reads when the rank has failed
(horovod/_runner/last_call.py makes it).

The rank notes there which phase of which plugin runs (`follow()`), and its engine notes the calls into backends
(engine/plugin/call_record.h, struct LastCall; engine/plugin/side_call.h, struct SideSlot).
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import struct
from collections.abc import Mapping

VARIABLE = "HOROVOD_LAST_CALL"
_NAME = "hvd-last-call"
_PAGE = 4096
_PHASE_BYTES = 128
_OWNER = struct.Struct("<Q")  # behind the phase: the process that writes here
# call, operation, bytes, collective, padding, the backend's name, the length of the name, padding
_RECORD = struct.Struct("<QQQiI48sII")
_RECORDS = ("loading", "driving", "creating", "ending")
# A call that any thread may make: state, padding, the call's name, its length, padding, and the same of the backend's
# name
_SIDE_CALL = struct.Struct("<II32sII48sII")
_SIDE_CALLS, _INSIDE = 16, 2
_SIDE_BEGIN = _PAGE - _SIDE_CALLS * _SIDE_CALL.size
_BEGIN = _SIDE_BEGIN - len(_RECORDS) * _RECORD.size
# By the numbers of enum Call.
_CALLS = ("", "load", "create", "collective", "group_begin or group_end", "req_test", "req_wait", "req_free")
_CALLS += ("finalize", "destroy", "abort", "split", "window_create or window_destroy", "query")

_page: mmap.mmap | None = None  # of this process, once it follows the phases


def follow(environ: Mapping[str, str]) -> int:
    """From now on, note the phases of plugins that this rank goes through. Returns the address of the memory for the
    calls of its engine; 0 if the launcher has made no memory, or made it for another process: a program that the rank
    has started finds the same variable."""
    from hvd_core.backends import _phases

    global _page
    if _page is None:
        _page = _map(environ.get(VARIABLE, ""))
        if _page is None:
            return 0
        _phases.listen(_note)
    return ctypes.addressof(ctypes.c_char.from_buffer(_page, _BEGIN)) if _owns(_page) else 0


def _map(path: str) -> mmap.mmap | None:
    with contextlib.suppress(OSError):
        # The launcher may have ended, and another process may have its number.
        if path and os.readlink(path) == f"/memfd:{_NAME} (deleted)":
            with open(path, "r+b", buffering=0) as memory:
                memory.truncate(_PAGE)
                page = mmap.mmap(memory.fileno(), _PAGE)
            owner = _owner_of(page)
            if owner in (0, os.getpid()) or not os.path.exists(f"/proc/{owner}"):
                page[:] = bytes(_PAGE)
                _OWNER.pack_into(page, _PHASE_BYTES, os.getpid())
                # Threads of the engine may outlive the interpreter, which would unmap it.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(page))
                return page
    return None


def _owner_of(page: mmap.mmap) -> int:
    return _OWNER.unpack_from(page, _PHASE_BYTES)[0]


def _owns(page: mmap.mmap) -> bool:
    return _owner_of(page) == os.getpid()  # the child of a fork does not


def _note(now: tuple[str, str] | None) -> None:
    if _page is not None and _owns(_page):
        from hvd_core.backends._phases import in_words

        text = in_words(now).encode()
        _page[:_PHASE_BYTES] = text[:_PHASE_BYTES].ljust(_PHASE_BYTES, b"\0")


def describe(page: bytes, killed: bool) -> str:
    """The page in words. An operation in flight means something for a process that a signal has
    ended: threads of the library may have been at work. A program that has failed by itself also leaves operations."""
    found = []
    page = page.ljust(_PAGE, b"\0")
    if phase := page[:_PHASE_BYTES].rstrip(b"\0").decode(errors="replace"):
        found.append(f"in {phase}")
    for name, record in zip(_RECORDS, _RECORD.iter_unpack(page[_BEGIN:_SIDE_BEGIN])):
        call, operation, size, collective, _, text, length, _ = record
        number = call & 0xFF
        operates = name == "driving" and operation & 1
        if not (0 < number < len(_CALLS) or operates):
            continue
        backend = text[:length].decode(errors="replace")
        details = f" ({_collective(collective)}, {size} bytes)" if operates else ""
        if number:
            found.append(f"in the call {_CALLS[number]} of backend '{backend}'{details}")
        elif killed:
            found.append(f"while an operation of backend '{backend}' was in flight{details}")
    for state, _, call, call_length, _, text, length, _ in _SIDE_CALL.iter_unpack(page[_SIDE_BEGIN:]):
        if state == _INSIDE:
            name, backend = (part.decode(errors="replace") for part in (call[:call_length], text[:length]))
            found.append(f"in the call {name} of backend '{backend}'")
    return "; ".join(dict.fromkeys(found))


def _collective(number: int) -> str:
    from hvd_core.types import COLLECTIVES

    return next((c.name for c in COLLECTIVES.values() if c.number == number), f"collective {number}")
