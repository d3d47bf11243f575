"""A call that fails on this rank before the engine knows of it must fail on the other ranks too: they wait for it.

The engine sends the failure to the other ranks (as POISON), where the matching call raises HorovodInternalError with
this rank's reason. Each function of a front end prepares its call inside of a guard, and hands the call to the engine
outside of the guard, as its last step::

    with report_failure("allreduce", name, process_set, "grouped_allreduce"):
        ...  # each step that looks at the caller's arguments, and so may raise any exception
    handle = engine().allreduce(...)

The two parts share no step, so each call counts once: as a request, or as a failure. From the last step on the engine
reports its own refusals.

``operation`` is a name of `hvd_core.types.OPERATIONS`. ``name`` is the name of the request, with its prefix
("allreduce.loss"), or the caller's argument of that name with the prefix behind it. None stands for the next unnamed
call of the operation. Any thread.
"""

from __future__ import annotations

from contextlib import suppress
from operator import index
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from hvd_core._runtime import current_job
from hvd_core.errors import HorovodInternalError

if TYPE_CHECKING:
    from hvd_core._core import Engine


class report_failure:
    """A context manager: an exception that leaves it is sent to the other ranks as the failure of their matching call.

    Args:
        operation, name, process_set, prefix: as for send_failure().
    """

    __slots__ = ("_call",)

    def __init__(self, operation: str, name: object, process_set: object, prefix: str | None = None) -> None:
        self._call: tuple[Any, ...] = operation, name, process_set, prefix

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._send(error)

    def _send(self, error: BaseException) -> None:
        operation, name, process_set, prefix = self._call
        send_failure(operation, name, process_set, error, prefix)


class report_message_failure(report_failure):
    """As report_failure, for a send to the rank ``other`` of the job, or a receive from it: notifies that rank."""

    __slots__ = ()

    def __init__(
        self, sends: bool, other: object, name: object, process_set: object, prefix: str | None = None
    ) -> None:
        self._call = sends, other, name, process_set, prefix

    def _send(self, error: BaseException) -> None:
        sends, other, name, process_set, prefix = self._call
        job = current_job.current()
        try:
            rank = index(other)
        except TypeError:  # no rank that could be notified
            return
        if job is None or not 0 <= rank < 1 << 31:
            return
        process_set_id = _id_of(process_set, job.engine)
        if process_set_id is not None:
            with suppress(HorovodInternalError):  # the job has ended
                text, request = _printable(_reason(error)), _request_name(name, prefix)
                job.engine.refuse_message(text, sends, rank, request, process_set_id)


def send_failure(
    operation: str, name: object, process_set: object, error: BaseException | str, prefix: str | None = None
) -> None:
    """Notify the other ranks that this rank's call has failed.

    Does nothing where no rank can wait for the call, or where the matching call of the other ranks is not known: before
    init(), after the end of the job, and for an argument that is no registered process set (see _id_of).

    Args:
        operation: see above.
        name: with ``prefix`` the caller's argument, which may be of any type. A name that cannot be made a text is
            unknown to the other ranks; the failure counts as that of the next unnamed call.
        process_set: the caller's argument; None for all ranks.
        error: the reason, as the other ranks get it.
        prefix: of the request's name.
    """
    job = current_job.current()
    if job is None:
        return
    process_set_id = _id_of(process_set, job.engine)
    if process_set_id is None:
        return
    with suppress(HorovodInternalError):  # the job has ended
        job.engine.poison(_request_name(name, prefix), _printable(_reason(error)), process_set_id, operation)


def refuse(
    operation: str,
    name: str | None,
    process_set: object,
    message: str,
    error: type[Exception] = ValueError,
) -> NoReturn:
    """Notify the other ranks that the call has failed, and raise ``error(message)`` on this one."""
    send_failure(operation, name, process_set, message)
    raise error(message)


def _id_of(process_set: Any, engine: Engine) -> int | None:
    """The id of the process set whose members may wait for the call; None if it is unknown.

    A set that is not registered is looked up by its ranks. A value of another type stands for all ranks in a job that
    has no other set.
    """
    if process_set is None:
        return 0
    try:
        process_set_id = process_set.process_set_id
        if isinstance(process_set_id, int):
            return process_set_id
        ranks = process_set.ranks
        return next((n for n, members in engine.process_sets().items() if members == ranks), None)
    except Exception:  # not a process set
        return 0 if len(engine.process_sets()) == 1 else None


def _request_name(name: object, prefix: str | None) -> str | None:
    if name is None:
        return None
    try:
        if prefix is None and not isinstance(name, str):
            return None
        return _printable(str(name) if prefix is None else f"{prefix}.{name}")
    except Exception:  # of the caller's __str__
        return None


def _reason(error: BaseException | str) -> str:
    if isinstance(error, str):
        return error
    kind = type(error).__name__
    try:
        message = str(error)
    except Exception:
        return f"{kind} (its text cannot be read)"
    # Our own messages are complete; in front of another one the type helps.
    return message if type(error) in (ValueError, NotImplementedError) and message else f"{kind}: {message}"


def _printable(text: str) -> str:
    # Python's texts may have surrogates (of file names, say), which the engine does not take.
    return text.encode("utf-8", "backslashreplace").decode()
