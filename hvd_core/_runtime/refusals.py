"""A call that fails on this rank before the engine knows of it must fail on the other ranks too: they wait for it.

The engine sends the failure to the other ranks (as POISON), where the matching call raises HorovodInternalError with
this rank's reason. Each function of a front end prepares its call inside of a guard, and hands the call to the engine
outside of the guard, as its last step:

    try:
        ...  # each step that looks at the caller's arguments, and so may raise any exception
    except BaseException as error:
        report("allreduce", name, process_set, error, "grouped_allreduce")
        raise
    handle = engine().allreduce(...)

The two parts share no step, so each call counts once: as a request, or as a failure. From the last step on the engine
reports its own refusals. A `try` costs nothing while nothing is raised. Where a context manager may cost something,
``with reported("allreduce", name, process_set):`` is the same, and ``refuse(...)`` reports and raises.

``operation`` is a name of `hvd_core.types.OPERATIONS`. ``name`` is the name of the request, with its prefix
("allreduce.loss"), or the caller's argument of that name with the prefix behind it. None stands for the next unnamed call
of the operation. Any thread.
"""

from __future__ import annotations

from contextlib import suppress
from operator import index
from typing import Any, NoReturn

from hvd_core._runtime import current_job
from hvd_core.errors import HorovodInternalError


def report(
    operation: str, name: Any, process_set: Any, error: BaseException | str, prefix: str | None = None
) -> None:
    """Tell the other ranks that this rank's call has failed.

    Does nothing where no rank can wait for the call, or no call of the other ranks can be told to be the matching one:
    before init(), after the end of the job, and for an argument that is no registered process set (see _number_of).

    Args:
        operation: see above.
        name: with `prefix` the caller's argument, which may be of any type. A name that cannot be made a text is unknown
            to the other ranks; the failure counts as that of the next unnamed call.
        process_set: the caller's argument; None for all ranks.
        error: the reason, as the other ranks will read it.
        prefix: of the request's name.
    """
    job = current_job.current()
    if job is None:
        return
    number = _number_of(process_set, job.engine)
    if number is None:
        return
    with suppress(HorovodInternalError):  # the job has ended
        job.engine.poison(_request_name(name, prefix), _readable(_reason(error)), number, operation)


def report_message(
    sends: bool, other: Any, name: Any, process_set: Any, error: BaseException, prefix: str | None = None
) -> None:
    """As report(), for a send to the rank `other` of the job (or a receive from it): tells that rank."""
    job = current_job.current()
    number = None if job is None else _number_of(process_set, job.engine)
    try:
        rank = index(other)
    except TypeError:  # no rank: it cannot be told
        return
    if number is None or not 0 <= rank < 1 << 31:
        return
    with suppress(HorovodInternalError):  # the job has ended
        job.engine.refuse_message(_readable(_reason(error)), sends, rank, _request_name(name, prefix), number)


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
    """A context manager: an exception that leaves it is reported to the other ranks. Arguments as for report()."""

    __slots__ = ("_name", "_operation", "_prefix", "_process_set")

    def __init__(self, operation: str, name: Any, process_set: Any, prefix: str | None = None) -> None:
        self._operation, self._name, self._process_set, self._prefix = operation, name, process_set, prefix

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            report(self._operation, self._name, self._process_set, error, self._prefix)


def _number_of(process_set: Any, engine: Any) -> int | None:
    """The number of the process set whose members may wait for the call; None if it cannot be told.

    A set that is not registered is looked up by its ranks. A value of another type stands for all ranks in a job that
    has no other set.
    """
    if process_set is None:
        return 0
    try:
        number = process_set.process_set_id
        if isinstance(number, int):
            return number
        ranks = process_set.ranks
        return next((n for n, members in engine.process_sets().items() if members == ranks), None)
    except Exception:  # not a process set
        return 0 if len(engine.process_sets()) == 1 else None


def _request_name(name: Any, prefix: str | None) -> str | None:
    if name is None:
        return None
    try:
        return _readable(name if prefix is None else f"{prefix}.{name}")
    except Exception:  # of the caller's __str__
        return None


def _reason(error: BaseException | str) -> str:
    if isinstance(error, str):
        return error
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception:
        return f"{kind} (its text cannot be read)"
    # The texts of our own refusals say all; in front of another text the type helps.
    return text if type(error) in (ValueError, NotImplementedError) and text else f"{kind}: {text}"


def _readable(text: str) -> str:
    # Python's texts may have surrogates (of file names, say), which the engine does not take.
    return text.encode("utf-8", "backslashreplace").decode()
