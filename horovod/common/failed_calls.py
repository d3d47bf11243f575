"""Calls that fail on this rank while they are prepared, in the front ends of frameworks, fail on the other ranks too.

Functions for the guards that hvd_core._runtime.failures describes. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from horovod.common.basics import engine
from hvd_core._runtime.failures import send_failure

__all__ = ["failed", "reported_for_each"]


def failed(operation: str, prefix: str, name: Any, process_set: Any, error: BaseException) -> None:
    """Let the other ranks' matching call fail, because `error` was raised while this one was prepared.

    To be called in the guard of a function, which then raises `error` again.

    Args:
        operation, name, process_set, prefix: as for failures.send_failure(); `name` is the caller's argument.

    Raises:
        ValueError: before init(), as the missing init() is the better message. ImportError: there is no engine.
    """
    if isinstance(error, Exception):
        engine()
    send_failure(operation, name, process_set, error, prefix)


@contextmanager
def reported_for_each(operation: str, prefix: str, names: Iterable[Any], process_set: Any) -> Iterator[None]:
    """A guard of several calls: an exception that leaves it is reported as the failure of every call in `names`, a list
    that the block may shorten as it makes the calls. Raises the errors of failed()."""
    try:
        yield
    except BaseException as error:
        for name in list(names):
            failed(operation, prefix, name, process_set, error)
        raise
