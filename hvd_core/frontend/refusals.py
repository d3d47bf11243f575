"""A call that fails on this rank before the engine knows of it must fail on the other ranks too: they wait for it.

The engine sends the failure to the other ranks (as POISON), where the matching call raises HorovodInternalError with
this rank's reason. A front end uses one of three forms of the same thing:

    refuse("alltoall", name, process_set, "splits must be ...")     # raises ValueError, here and for the others

    with reported("allreduce", name, process_set):                  # for code that raises by itself
        compressed = compression.compress(tensor)

    except Exception as error:                                      # where a context manager costs too much
        report("allreduce", name, process_set, error)
        raise

``operation`` is a name of `hvd_core.types.OPERATIONS`. ``name`` is the name of the request, with its prefix
("allreduce.loss"); None stands for the next unnamed call of the operation. Any thread.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NoReturn

from hvd_core import current_job
from hvd_core.errors import HorovodInternalError


def report(operation: str, name: str | None, process_set: Any, error: Exception | str) -> None:
    """Tell the other ranks that this rank's call has failed.

    Does nothing where no rank can wait for the call: before init(), after the end of the job, and for a process set that
    is not registered.

    Args:
        operation, name: see above.
        process_set: a ProcessSet; None for all ranks.
        error: the reason, as the other ranks will read it.
    """
    number = 0 if process_set is None else getattr(process_set, "process_set_id", None)
    job = current_job.current()
    if number is None or job is None:
        return
    # Python's texts may have surrogates (of file names, say), which the engine does not take.
    text = _reason(error).encode("utf-8", "backslashreplace").decode()
    with suppress(HorovodInternalError):  # the job has ended
        job.engine.poison(name, text, number, operation)


def refuse(
    operation: str,
    name: str | None,
    process_set: Any,
    text: str,
    error: type[Exception] = ValueError,
) -> NoReturn:
    """Report the call as failed to the other ranks, and raise ``error(text)`` on this one."""
    report(operation, name, process_set, text)
    raise error(text)


class reported:
    """A context manager: an exception that leaves it is reported to the other ranks. KeyboardInterrupt is not."""

    __slots__ = ("_name", "_operation", "_process_set")

    def __init__(self, operation: str, name: str | None, process_set: Any) -> None:
        self._operation, self._name, self._process_set = operation, name, process_set

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception):
            report(self._operation, self._name, self._process_set, error)


def _reason(error: Exception | str) -> str:
    # The texts of our own refusals say all; in front of another text the type helps.
    if isinstance(error, str) or type(error) in (ValueError, NotImplementedError):
        return str(error)
    return f"{type(error).__name__}: {error}"
