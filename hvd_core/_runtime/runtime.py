"""init() and shutdown() of the one engine of this process, and facts about the job: ranks, sizes, backends.

All framework modules and the NumPy API go through here, so that ``hvd.init()`` of two of them in one process means one
engine. Any thread may call; init and shutdown take turns.
"""

from __future__ import annotations

import atexit
import errno
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hvd_core._base import logs
from hvd_core._runtime import crash_reports, current_job, engine_start
from hvd_core._runtime.current_job import engine, is_initialized, rank, size, world
from hvd_core._runtime.process_sets import ProcessSets, global_process_set, resolve_sets
from hvd_core.backends.errors import BackendError
from hvd_core.errors import HorovodInternalError, JobEndedError

if TYPE_CHECKING:
    from hvd_core._bootstrap.world import World
    from hvd_core.backends._selection.plan import BackendPlan, BackendReport

__all__ = [
    "HorovodInternalError",
    "backend_fact",
    "backend_report",
    "cross_rank",
    "cross_size",
    "engine",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "plan",
    "rank",
    "restart",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "world",
]

SHUT_DOWN = (
    "Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to allreduce, "
    "allgather or broadcast a tensor after one of the ranks finished execution. If the shutdown was caused by an "
    "exception, you should see the exception in the log before the first shutdown message."
)
_SHUTDOWN_SECONDS = 60.0
_lock = threading.RLock()


def _in_forked_child() -> None:
    """A thread of the parent may have held the lock, in init() for instance. In the child that thread does not run."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_in_forked_child)
_registered = False
# Of the last init() that has started an engine.
_arguments: dict[str, Any] = {}


def init(
    comm: Sequence[int] | Any = None,
    process_sets: Any = None,
    backend: str | type | Sequence[str | type] | None = None,
) -> None:
    """Start the engine, together with all ranks of the job. A second call before shutdown() starts nothing, also when the
    job has ended meanwhile.

        hvd.init()
        print(hvd.rank(), "of", hvd.size())

    In an elastic job it returns when this process has a place in a world; if a rank dies meanwhile, in the next one. It
    raises SystemExit if the job does not need this process any more.

    Args:
        comm: None for all ranks that the launcher started; or a list of some of them, which make a job of their own with
            ranks in the order of the list: only the members call init(), all with the same list, and other ranks may be
            in another job at the same time; or an mpi4py communicator, whose processes are the job: it is duplicated for
            the time of the job.
        process_sets: a list of ProcessSet or of lists of ranks, the same on all ranks, or "dynamic" for sets that are
            added later (HOROVOD_DYNAMIC_PROCESS_SETS=1).
        backend: a name, a subclass of hvd_core.backends.PythonBackend, or an ordered list of these, instead of
            HOROVOD_BACKEND.

    Raises:
        ValueError: arguments or environment variables make no sense, or lists of ranks differ between their members.
        hvd_core._base.sockets.BootstrapError: the ranks do not come together; its subclass RankLost (another rank has
            ended) is a HorovodInternalError too.
        hvd_core.backends.errors.BackendError: no backend can be used.
        NotImplementedError: a communicator defines a process set, but ``comm`` is not a communicator.
    """
    global _registered, _arguments
    with _lock:
        job = current_job.current()
        if job is not None:
            _check_same_job(comm, job.world)
            if job.engine.stopped or job.is_parents():
                return  # the job has ended, or this is a forked child: operations will report it
            static = engine_start.static_sets(process_sets)
        else:
            try:
                job, static = engine_start.start(comm, backend, process_sets)
            except (BackendError, ValueError, OSError, RuntimeError) as error:
                _explain_limit(error)
                if str(error).startswith("horovod: "):
                    # The message is complete. Every rank prints it, and a traceback in front of it would bury it.
                    error.with_traceback(None)
                raise error
            job.process_sets = ProcessSets(job)
            current_job.set_current(job)
            sets_again = process_sets if isinstance(process_sets, str) else static
            _arguments = {"comm": comm, "process_sets": sets_again, "backend": backend}
            if not _registered:
                atexit.register(_at_exit)
                _registered = True
            crash_reports.watch_exceptions(_leave)
            if job.world.comm is not None:
                global_process_set.mpi_comm = comm
        # The engine stays up when these are refused: a second init() with a clean list succeeds.
        sets, entries = resolve_sets(static, job.world.comm, job.world.size)
        try:
            job.process_sets.begin(sets, entries)
        except JobEndedError:
            if not engine_start.is_elastic():
                raise
            shutdown()  # a rank of this world has died meanwhile
            init(comm, process_sets, backend)


def _explain_limit(error: Exception) -> None:
    """Raises the error that names the limit of the operating system and the need, if `error` is about a limit."""
    import resource

    from hvd_core._base.sockets import BootstrapError

    if any(isinstance(e, OSError) and e.errno == errno.EMFILE for e in (error, error.__cause__)):
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise BootstrapError(
            f"this process may have {soft} open files (ulimit -n), and all of them are in use. init() needs about 16 "
            "more, and 4 for each neighbour on this host: raise the limit with 'ulimit -n'"
        ) from error
    if str(error).startswith("can't start new thread") or (
        isinstance(error, OSError) and "thread" in str(error)
    ):
        raise BootstrapError(
            "this process cannot start a thread: init() needs about 8. Check the limits of the user's processes and "
            "threads (ulimit -u), of the address space (ulimit -v) and of the container (pids)"
        ) from error


def _check_same_job(comm: Sequence[int] | Any, world: World) -> None:
    """Raise ValueError if a second init() names other ranks than the first."""
    from hvd_core._bootstrap.store import job_members

    running = world.members or tuple(range(world.size))
    if job_members.is_communicator(comm):
        from hvd_core._bootstrap.rendezvous.mpi import members_of

        if members_of(comm) == running:
            return
        asked = "an MPI communicator of other processes"
    else:
        members = () if comm is None else job_members.checked(comm)
        if members in ((), running):
            return
        asked = job_members.shorten(members)
    raise ValueError(
        f"horovod: init(comm=...) names {asked}, but this process is in a job of ranks {job_members.shorten(running)} "
        "already. Call shutdown() first."
    )


def shutdown() -> None:
    """End the job for all ranks in good order: what they had agreed on is finished first, then pending operations fail.

    Does nothing before init(), the second time, and in a forked child. init() may be called again afterwards.
    """
    with _lock:
        job = current_job.current()
        if job is None:
            return
        _leave()
        if current_job.current() is not job:
            return  # a signal handler that ran meanwhile has called shutdown() too
        if not job.is_parents():
            job.world.linger()
        _drop()


def restart() -> None:
    """shutdown(), then init() with the arguments of the last init(), for the next world of an elastic job. Raises as
    init()."""
    shutdown()
    init(**_arguments)


def _leave() -> None:
    job = current_job.current()
    if job is not None and not job.is_parents() and not job.engine.stopped:
        text = crash_reports.closing_text(SHUT_DOWN, job.world.rank)
        job.engine.shutdown(text, _SHUTDOWN_SECONDS)


def _at_exit() -> None:
    crash_reports.note_last_exception()
    shutdown()


def _drop() -> None:
    """Let go of the engine, then of the descriptors it borrows."""
    job = current_job.current()
    current_job.set_current(None)
    if job is None:
        return
    job.process_sets.end()
    crash_reports.unwatch_exceptions()
    if not job.is_parents():
        engine_start.note_end(job.engine)
        job.engine.close()
        job.world.close()
        logs.stop_forwarding()
        engine_start.end_phase_timeout()
    current_job.forget_the_job()


def plan() -> BackendPlan:
    """The backends that all ranks have chosen. Raises ValueError before init()."""
    return current_job.get().plan


def backend_fact(backend: str, key: str) -> str | None:
    """A fact about a backend's library in this job, such as "threads" of the backend mpi.

    None where the backend does not know it, or not yet, and in a forked child. Raises ValueError before init().
    """
    job = current_job.get()
    return None if job.is_parents() else job.engine.backend_fact(backend, key)


def local_rank() -> int:
    """Rank of this process on its host, from 0. Raises ValueError before init()."""
    return current_job.get().world.local_rank


def local_size() -> int:
    """Number of processes of the job on this host. Raises ValueError before init()."""
    return current_job.get().world.local_size


def cross_rank() -> int:
    """Index of this host among those that have a process with this local rank. Raises ValueError before init()."""
    return current_job.get().world.cross_rank


def cross_size() -> int:
    """Number of hosts that have a process with this local rank. Raises ValueError before init()."""
    return current_job.get().world.cross_size


def is_homogeneous() -> bool:
    """Whether all hosts have the same number of processes. Raises ValueError before init()."""
    from hvd_core.backends._selection.choice import homogeneous

    return homogeneous(current_job.get().world)


def backend_report() -> BackendReport:
    """Which backend serves each operation on each device type, and which setting chose it. A tuple of rows, whose text is
    a table; with the operations that ran on devices so far, and how each was served.

    In a job it has the device types that settings name, and those that were used so far. Before init(): the choice of a
    job of one process, for all devices of this machine, which imports the plugins for these and asks them. Raises the
    errors of init(): hvd_core.backends.BackendError or ValueError.
    """
    from hvd_core.backends._selection.job import report_now

    job = current_job.current()
    if job is None:
        return report_now(None)
    return report_now(job.plan, None if job.is_parents() else job.engine)


# Rank 0 switches the timeline of all ranks at one point of the log. All ranks may call, at the same point of the
# program; on other ranks the call only checks the arguments, so that a program that calls on rank 0 alone works as well.


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Write a timeline to ``file_path`` from now on; see docs/timeline.md. A timeline under way ends first. Returns on
    rank 0 when its file is there.

    Args:
        file_path: the file, which rank 0 writes; with ``{rank}`` in it every rank writes one.
        mark_cycles: whether rounds of the engine are marked in it.

    Raises:
        ValueError: Horovod is not initialized, or the path is empty.
        TypeError: ``file_path`` is no path.
        OSError: rank 0 cannot make the file.
        HorovodInternalError: the job has ended.
    """
    job = current_job.get()
    path = os.fspath(file_path)
    if not isinstance(path, str):
        raise TypeError(f"start_timeline: file_path must be a str, found {type(file_path).__name__}")
    if not path:
        raise ValueError("start_timeline: file_path is empty; name the file that rank 0 shall write")
    # Other ranks of this host may have another current folder.
    path = os.path.abspath(path)
    if job.world.rank == 0:
        own = path.replace("{rank}", "0")
        os.close(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))
    job.engine.switch_timeline(path, bool(mark_cycles), _all_ranks())


def stop_timeline() -> None:
    """End the timeline on all ranks. Returns on rank 0 when its file is complete. Without a timeline it does nothing.

    Raises ValueError before init().
    """
    current_job.get().engine.switch_timeline("")


def _all_ranks() -> bool:
    from hvd_core._config.settings import read_environment

    return read_environment().timeline_all_ranks
