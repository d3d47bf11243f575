"""Calls that fail on this rank while they are prepared, in the front ends of frameworks, fail on the other ranks too.

Functions for the guards that hvd_core._runtime.failures describes. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from horovod.common.basics import engine
from hvd_core._runtime.failures import send_failure

__all__ = ["reported_for_each"]


@contextmanager
def reported_for_each(operation: str, prefix: str, names: Iterable[Any], process_set: Any) -> Iterator[None]:
    """A guard of several calls: an exception that leaves it is reported as the failure of each call, so that the other
    ranks' matching calls fail too.

    Args:
        operation, prefix, process_set: as for failures.send_failure().
        names: of the calls, as the caller has given them; a list that the block may change as it makes the calls.

    Raises:
        ValueError: before init(), as the missing init() is the better message. ImportError: there is no engine.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception):
            engine()
        for name in list(names):
            send_failure(operation, name, process_set, error, prefix)
        raise
