"""An exception that nobody catches on this rank is what the other ranks report as the cause of the job's end.

While an engine runs, sys.excepthook and threading.excepthook are ours and call those that were there before. The
exception that ends the program ends the job as well, at once and not when the interpreter has come to its exit
functions. One in another thread does not end the program: it is remembered, and told if the job ends before its time.
Used by the runtime and by launchers that catch what a program raises; any thread.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_LONGEST = 500  # characters of an exception's text that are told

_cause = ""
_watched: _Watch | None = None


def closing_text(usual: str, rank: int) -> str:
    """What pending operations fail with on the other ranks when this one leaves: ``usual``, or what is known to have gone
    wrong here."""
    if not _cause:
        return usual
    return f"Horovod has been shut down. This was caused by an exception on rank {rank}: {_cause}"


def note(error: BaseException, where: str = "") -> None:
    """Remember an exception that ends the work of this rank; the first one counts. ``where``: words put before it."""
    global _cause
    if not _cause:
        _cause = where + _told(error)


def note_last() -> None:
    """At the interpreter's exit: remember the exception that ended the program, where the hook was not asked because the
    program has put its own in its place."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is not None and not _at_a_prompt():
        note(error)


def watch(leave: Callable[[], None]) -> None:
    """``leave`` is called, in the main thread, when an exception has ended the program. Until unwatch()."""
    global _watched
    unwatch()
    _watched = _Watch(leave)


def unwatch() -> None:
    """Put the hooks back that were there before, and forget what was remembered."""
    global _watched, _cause
    watched, _watched, _cause = _watched, None, ""
    if watched is not None:
        watched.end()


class _Watch:
    """The two hooks, and the ones before."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave, self._pid, self._on = leave, os.getpid(), True
        self._before, self._thread_before = sys.excepthook, threading.excepthook
        self._hook, self._thread_hook = self._program_ended, self._thread_ended
        sys.excepthook, threading.excepthook = self._hook, self._thread_hook

    def end(self) -> None:
        self._on = False  # a later hook may call ours: it passes on what comes
        if sys.excepthook is self._hook:
            sys.excepthook = self._before
        if threading.excepthook is self._thread_hook:
            threading.excepthook = self._thread_before

    def _mine(self) -> bool:
        return self._on and os.getpid() == self._pid

    def _program_ended(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        try:
            # First, so that the traceback is in the log before what the other ranks say of it.
            self._before(kind, error, trace)
        finally:
            if self._mine() and not _at_a_prompt():
                note(error)
                with suppress(KeyboardInterrupt):
                    self._leave()

    def _thread_ended(self, what: Any) -> None:
        try:
            self._thread_before(what)
        finally:
            if self._mine() and what.exc_value is not None and what.exc_type is not SystemExit:
                name = what.thread.name if what.thread is not None else "unknown"
                note(what.exc_value, f"in thread {name!r}: ")


def _at_a_prompt() -> bool:
    """Whether somebody types the program: an exception ends a line of it and not the program."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def _told(error: BaseException) -> str:
    """One line: type, text, and where it was raised."""
    words = traceback.format_exception_only(type(error), error)
    text = " ".join("".join(words).split())
    if len(text) > _LONGEST:
        text = text[: _LONGEST - 3] + "..."
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return text
    last = frames[-1]
    return f"{text} ({os.path.basename(last.filename)}, line {last.lineno}, in {last.name})"
