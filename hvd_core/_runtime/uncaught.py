"""An uncaught exception on this rank is the cause of the job's end that the other ranks report.

While an engine runs, sys.excepthook and threading.excepthook are ours; they call the hooks that were set before. An
exception that ends the program ends the job too, at once: before the interpreter calls its exit functions. An exception
in another thread does not end the program: it is remembered, and reported if the job ends too early. Used by the runtime
and by launchers that catch the exceptions of a program; any thread.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
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


def note(error: BaseException, where: str = "") -> None:
    """Remember an exception that ends the work of this rank; the first one counts. ``where``: words in front of it."""
    global _cause
    if not _cause:
        _cause = where + _one_line(error)


def note_last() -> None:
    """At the interpreter's exit: remember the exception that ended the program, in case the program has replaced our hook
    by its own."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is not None and not _at_a_prompt():
        note(error)


def watch(leave: Callable[[], None]) -> None:
    """Call ``leave``, in the main thread, when an exception has ended the program. Until unwatch()."""
    global _watched
    unwatch()
    _watched = _Watch(leave)


def unwatch() -> None:
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
                note(error)
                with suppress(KeyboardInterrupt):
                    self._leave()

    def _thread_ended(self, args: Any) -> None:
        try:
            self._thread_before(args)
        finally:
            if self._mine() and args.exc_value is not None and args.exc_type is not SystemExit:
                name = args.thread.name if args.thread is not None else "unknown"
                note(args.exc_value, f"in thread {name!r}: ")


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
