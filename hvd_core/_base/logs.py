"""The messages of hvd-core's Python code, and the engine's lines for programs that keep a log of their own.

All Python code writes to the logger "horovod". If the program has configured ``logging``, its handlers get these
messages. Otherwise they go to stderr in the form of the engine's lines: ``[time] [rank] horovod LEVEL: text``. The
engine's own lines go to stderr immediately, because a process that dies must still report why; with
HOROVOD_LOG_TO_PYTHON=1 they go to the logger too, except for the level fatal. Any thread may call.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from contextlib import suppress
from datetime import datetime
from types import ModuleType

# By the index of a level in config.environment.LOG_LEVELS.
_LEVELS = (5, logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
_NAMES = {logging.CRITICAL: "FATAL"}

logger = logging.getLogger("horovod")


class _ToStderr(logging.Handler):
    """Writes the engine's form, unless the program has handlers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.with_time = True
        self.rank: int | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if sys.stderr is None or logging.getLogger().handlers or logger.handlers != [self]:
            return
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)

    def format(self, record: logging.LogRecord) -> str:
        stamp = f"[{datetime.fromtimestamp(record.created):%Y-%m-%d %H:%M:%S.%f}] " if self.with_time else ""
        rank = "" if self.rank is None else f"[{self.rank}] "
        text = super().format(record).removeprefix("horovod: ")
        return f"{stamp}{rank}horovod {_NAMES.get(record.levelno, record.levelname)}: {text}"


_handler = _ToStderr()
_level_set = logging.NOTSET  # by configure(): a level that the program has set stays
_forwarder: threading.Thread | None = None


def begin() -> None:
    """Called when hvd_core is imported: messages before init() follow the environment where it is valid."""
    logging.addLevelName(_LEVELS[0], "TRACE")
    logger.addHandler(_handler)
    os.register_at_fork(after_in_child=_in_forked_child)
    if any(name.startswith("HOROVOD_LOG_") for name in os.environ):
        from hvd_core._config.settings import read_log_settings

        with suppress(ValueError):
            configure(*read_log_settings(os.environ))


def configure(level: int | None, with_time: bool) -> None:
    """Follow the settings of an init(). ``level``: an index of LOG_LEVELS, or None to leave the level to the program."""
    global _level_set
    _handler.with_time = with_time
    if logger.level == _level_set:
        _level_set = logging.NOTSET if level is None else _LEVELS[level]
        logger.setLevel(_level_set)


def set_rank(rank: int) -> None:
    """The rank that later lines name."""
    _handler.rank = rank


def forward_engine_lines() -> None:
    """From now on, give the engine's lines to the logger, until stop_forwarding()."""
    global _forwarder
    if _forwarder is not None:
        return
    from hvd_core._base import native

    core = native.load()
    core.keep_log_lines(True)
    _forwarder = threading.Thread(target=_forward, args=(core,), name="hvd-log", daemon=True)
    _forwarder.start()


def stop_forwarding() -> None:
    """Give the lines that are left to the logger; later ones go to stderr."""
    global _forwarder
    thread, _forwarder = _forwarder, None
    if thread is not None:
        from hvd_core._base import native

        native.load().keep_log_lines(False)
        thread.join()


def _forward(core: ModuleType) -> None:
    while (line := core.take_log_line()) is not None:
        level, text = line
        try:
            logger.log(_LEVELS[level], "%s", text)
        except (
            Exception
        ) as error:  # of the program's filter or handler; the lines that follow must not be lost
            with suppress(Exception):
                sys.stderr.write(f"{text} (the program's logging raised {type(error).__name__}: {error})\n")


def _in_forked_child() -> None:
    """The thread is the parent's. A child of an engine writes at most a few lines, to stderr."""
    global _forwarder
    if _forwarder is not None:
        _forwarder = None
        from hvd_core._base import native

        native.load().keep_log_lines_no_more()


def printable(text: str) -> str:
    """``text``, which another rank or a file gave, without characters that would change what a terminal or a log shows.
    Further lines are indented."""
    from hvd_core._base import native

    shown: str = native.load().printable(text.encode("utf-8", "surrogateescape"))
    return shown
