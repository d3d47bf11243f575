"""Crash reports: the exception or the backend call that has ended this rank, for the other ranks and the launcher.

An uncaught exception on this rank is the cause of the job's end that the other ranks report. While an engine runs,
sys.excepthook and threading.excepthook are ours; they call the hooks that were set before. An
exception that ends the program ends the job too, immediately: before the interpreter calls its exit functions. An
exception
in another thread does not end the program: it is remembered, and reported if the job ends too early. Used by the runtime
and by launchers that catch the exceptions of a program; any thread.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

_LONGEST = 500  # characters of an exception's text that are reported
_HERE = os.path.dirname(os.path.dirname(__file__))
_LIBRARIES = (f"{os.path.dirname(os.__file__)}/", f"{_HERE}/", f"{os.path.dirname(_HERE)}/horovod/")

_cause = ""
_watched: _Watch | None = None


def closing_text(usual: str, rank: int) -> str:
    """The text with which pending operations fail on the other ranks when this rank leaves: ``usual``, or the exception
    that is known as the cause."""
    if not _cause:
        return usual
    return f"Horovod has been shut down. This was caused by an exception on rank {rank}: {_cause}"


def note_exception(error: BaseException, where: str = "") -> None:
    """Remember an exception that ends the work of this rank; the first one counts. ``where``: words in front of it."""
    global _cause
    if not _cause:
        _cause = where + _one_line(error)


def note_last_exception() -> None:
    """At the interpreter's exit: remember the exception that ended the program, in case the program has replaced our hook
    by its own."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is not None and not _at_a_prompt():
        note_exception(error)


def watch_exceptions(leave: Callable[[], None]) -> None:
    """Call ``leave``, in the main thread, when an exception has ended the program. Until unwatch()."""
    global _watched
    unwatch_exceptions()
    _watched = _Watch(leave)


def unwatch_exceptions() -> None:
    """Restore the hooks that were set before, and forget the exception that was remembered."""
    global _watched, _cause
    watched, _watched, _cause = _watched, None, ""
    if watched is not None:
        watched.end()


class _Watch:
    """Our two hooks, and the two that were set before."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave, self._pid, self._on = leave, os.getpid(), True
        self._before, self._thread_before = sys.excepthook, threading.excepthook
        self._hook, self._thread_hook = self._program_ended, self._thread_ended
        sys.excepthook, threading.excepthook = self._hook, self._thread_hook

    def end(self) -> None:
        self._on = False  # a later hook may still call ours, which then only calls the earlier one
        if sys.excepthook is self._hook:
            sys.excepthook = self._before
        if threading.excepthook is self._thread_hook:
            threading.excepthook = self._thread_before

    def _mine(self) -> bool:
        return self._on and os.getpid() == self._pid

    def _program_ended(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        try:
            # First, so that the traceback is in the log before the reports of the other ranks.
            self._before(kind, error, trace)
        finally:
            if self._mine() and not _at_a_prompt():
                note_exception(error)
                with suppress(KeyboardInterrupt):
                    self._leave()

    def _thread_ended(self, args: Any) -> None:
        try:
            self._thread_before(args)
        finally:
            if self._mine() and args.exc_value is not None and args.exc_type is not SystemExit:
                name = args.thread.name if args.thread is not None else "unknown"
                note_exception(args.exc_value, f"in thread {name!r}: ")


def _at_a_prompt() -> bool:
    """Whether the interpreter is interactive: an exception ends one input and not the program."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def _is_of_program(file: str) -> bool:
    """Whether a file is neither installed nor a part of Python or of this project."""
    installed = "/site-packages/" in file or "/dist-packages/" in file or file.startswith("<frozen ")
    return not installed and not file.startswith(_LIBRARIES)


def _one_line(error: BaseException) -> str:
    """Type, text, and place of an exception in one line: the place in the program, also if a library has raised it."""
    words = traceback.format_exception_only(type(error), error)
    text = " ".join("".join(words).split())
    if len(text) > _LONGEST:
        text = text[: _LONGEST - 3] + "..."
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return text
    last = next((frame for frame in reversed(frames) if _is_of_program(frame.filename)), frames[-1])
    return f"{text} ({os.path.basename(last.filename)}, line {last.lineno}, in {last.name})"


# What a rank does in backends, recorded in memory that its launcher reads when the rank has failed
# (horovod/_runner/failures.py makes it).
#
# The rank records there which phase of which plugin runs (`record_last_call()`), and its engine the calls into backends
# (engine/plugins/backend_call.h, struct CallMemory).

VARIABLE = "HOROVOD_LAST_CALL"
_NAME = "hvd-last-call"
_PAGE = 4096
_PHASE_BYTES = 128
_OWNER = struct.Struct("<Q")  # behind the phase: the process that writes here
_BEGIN = 256
# A count with the bit of an operation in flight, bytes, collective, padding, the backend's name, the length of the name,
# padding
_OPERATION = struct.Struct("<QQiI48sII")
# One thread's call: a count and the number of the call, the backend's name, the length of the name, padding, state,
# padding
_CALL = struct.Struct("<Q48sIIII")
_CALLS = 48
_OF_EARLIER_ENGINE = 4
_IN_AN_OPERATION = ("collective", "group_begin", "group_end", "req_test", "req_wait", "req_free")

_page: mmap.mmap | None = None  # of this process, once it follows the phases


def record_last_call(environ: Mapping[str, str]) -> int:
    """From now on, note the phases of plugins that this rank goes through. Returns the address of the memory for the
    calls of its engine; 0 if the launcher has made no memory, or made it for another process: a program that the rank
    has started finds the same variable."""
    from hvd_core.backends import _phases

    global _page
    if _page is None:
        _page = _map(environ.get(VARIABLE, ""))
        if _page is None:
            return 0
        _phases.listen(_note_phase)
    return ctypes.addressof(ctypes.c_char.from_buffer(_page, _BEGIN)) if _owns(_page) else 0


def _map(path: str) -> mmap.mmap | None:
    with suppress(OSError):
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
    (owner,) = _OWNER.unpack_from(page, _PHASE_BYTES)
    return int(owner)


def _owns(page: mmap.mmap) -> bool:
    return _owner_of(page) == os.getpid()  # the child of a fork does not


def _note_phase(now: tuple[str, str] | None) -> None:
    if _page is not None and _owns(_page):
        from hvd_core.backends._phases import in_words

        text = in_words(now).encode()
        _page[:_PHASE_BYTES] = text[:_PHASE_BYTES].ljust(_PHASE_BYTES, b"\0")


def describe_last_call(page: bytes, killed: bool) -> str:
    """The page in words. An operation in flight means something for a process that a signal has
    ended: threads of the library may have been at work. A program that has failed by itself also leaves operations."""
    found = []
    page = page.ljust(_PAGE, b"\0")
    if phase := page[:_PHASE_BYTES].rstrip(b"\0").decode(errors="replace"):
        found.append(f"in {phase}")
    operation, size, collective, _, text, length, _ = _OPERATION.unpack_from(page, _BEGIN)
    details = f" ({_collective(collective)}, {size} bytes)" if operation & 1 else ""
    names = _names_of_calls()
    begin = _BEGIN + _OPERATION.size
    for word, name, name_length, _, state, _ in _CALL.iter_unpack(page[begin : begin + _CALLS * _CALL.size]):
        number = word & 0xFF
        if 0 < number < len(names) and state != _OF_EARLIER_ENGINE:
            call, backend = names[number], name[:name_length].decode(errors="replace")
            about = details if call in _IN_AN_OPERATION else ""
            found.append(f"in the call {call} of backend '{backend}'{about}")
    if killed and details and not any(part.endswith(details) for part in found):
        backend = text[:length].decode(errors="replace")
        found.append(f"while an operation of backend '{backend}' was in flight{details}")
    return "; ".join(dict.fromkeys(found))


def _names_of_calls() -> list[str]:
    """By the numbers of the engine's enum Call."""
    from hvd_core.backends._slots import slots

    return ["", "load", *(slot.name for slot in slots())]


def _collective(number: int) -> str:
    from hvd_core.types import COLLECTIVES

    return next((c.name for c in COLLECTIVES.values() if c.number == number), f"collective {number}")
