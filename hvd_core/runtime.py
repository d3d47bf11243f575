"""init() and shutdown() of the one engine of this process, and facts about the job: ranks, sizes, backends.

All framework modules and the NumPy API go through here, so that ``hvd.init()`` of two of them in one process means one
engine. Any thread may call; init and shutdown take turns.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hvd_core import asked_facts, communicator_sets, compiled_part, current_job, logs, uncaught
from hvd_core import process_sets as _process_sets
from hvd_core.backends.errors import BackendError
from hvd_core.current_job import Job, engine, is_initialized, rank, size, world
from hvd_core.errors import HorovodInternalError, JobEndedError

if TYPE_CHECKING:
    from hvd_core.backends.selection.backend_plan import BackendPlan
    from hvd_core.backends.selection.backend_report import BackendReport
    from hvd_core.bootstrap import World

SHUT_DOWN = (
    "Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to allreduce, "
    "allgather or broadcast a tensor after one of the ranks finished execution. If the shutdown was caused by an "
    "exception, you should see the exception in the log before the first shutdown message."
)
_SHUTDOWN_SECONDS = 60.0
_log = logging.getLogger("horovod")
# What the engine says about a rank whose end it has seen (engine.cc, reports.cc).
_RANK_LOST = re.compile(r"rank \d+ \(host .*\) (died|is gone)")


_lock = threading.RLock()


def _in_forked_child() -> None:
    """A thread of the parent may have held the lock, in init() for instance. In the child it does not go on."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_in_forked_child)
_registered = False
_engines = 0


def init(
    comm: Sequence[int] | Any = None,
    process_sets: Any = None,
    backend: str | type | Sequence[str | type] | None = None,
) -> None:
    """Start the engine, together with all ranks of the job. A second call before shutdown() starts nothing, also when the
    job has ended meanwhile.

    ``comm``: None for all ranks that the launcher started; or a list of some of them, which make a job of their own with
    ranks in the order of the list: only the members call init(), all with the same list, and other ranks may be in
    another job at the same time; or an mpi4py communicator, whose processes are the job: it is duplicated for the time
    of the job.

    ``process_sets``: a list of ProcessSet or of lists of ranks, the same on all ranks, or "dynamic" for sets that are
    added later (HOROVOD_DYNAMIC_PROCESS_SETS=1). ``backend``: a name, a subclass of hvd_core.backends.PythonBackend, or
    an ordered list of these, in place of HOROVOD_BACKEND.

    In an elastic job it returns when this process has a place in a world; if a rank dies meanwhile, in the next one. It
    raises SystemExit if the job does not need this process any more.

    Raises ValueError for arguments or environment variables that make no sense, and for lists of ranks that differ
    between their members; hvd_core.bootstrap.BootstrapError when the ranks do not come together, of which RankLost
    (another rank has ended) is a HorovodInternalError too;
    hvd_core.backends.errors.BackendError when no backend can be used; NotImplementedError when a communicator defines a
    process set, but ``comm`` is not a communicator.
    """
    global _registered
    with _lock:
        job = current_job.current()
        if job is not None:
            _check_same_job(comm, job.world)
            if job.engine.stopped or job.is_parents():
                return  # the job has ended, or this is a forked child: operations will say so
            static = _static_sets(process_sets)
        else:
            try:
                job, static = _start_in_a_world(comm, backend, process_sets)
            except (BackendError, ValueError, OSError, RuntimeError) as error:
                limit = _limit_met(error)
                if limit is not None:
                    raise limit from error
                if str(error).startswith("horovod: "):
                    # The text says it all. Every rank prints it, and a traceback in front of it would bury it.
                    error.with_traceback(None)
                raise error
            current_job.set_current(job)
            if not _registered:
                atexit.register(_at_exit)
                _registered = True
            uncaught.watch(_leave)
            if job.world.comm is not None:
                _process_sets.global_process_set.mpi_comm = comm
        # The engine stays up when these are refused: a second init() with a clean list succeeds.
        sets, entries = communicator_sets.resolved(static, job.world.comm, job.world.size)
        _process_sets.begin(job.world.size, sets, entries)


def _limit_met(error: Exception) -> Exception | None:
    """The error that says which limit of the operating system `error` is about, if it is about one."""
    from hvd_core.bootstrap import limits

    return limits.explained(error)


def _static_sets(process_sets: Any) -> list[_process_sets.ProcessSet]:
    if not isinstance(process_sets, str):
        make = _process_sets.ProcessSet
        return [s if isinstance(s, make) else make(s) for s in process_sets or ()]
    if process_sets.lower() != "dynamic":
        raise ValueError(f'process_sets must be a list of ProcessSet or "dynamic", but is {process_sets!r}.')
    os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
    return []


def _check_same_job(comm: Sequence[int] | Any, world: World) -> None:
    """Raise ValueError if a second init() names other ranks than the first."""
    from hvd_core.bootstrap import job_members

    running = world.members or tuple(range(world.size))
    if job_members.is_communicator(comm):
        from hvd_core.bootstrap.mpi_comm import members_of

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


def _start_in_a_world(
    comm: Sequence[int] | Any, backend: str | type | Sequence[str | type] | None, process_sets: Any
) -> tuple[Job, list[_process_sets.ProcessSet]]:
    """As _start(). In an elastic job it asks the driver for a place in a world first, and again if that world has lost a
    member before all of its members had come."""
    from hvd_core.bootstrap import BootstrapTimeout, driver_channel

    channel = driver_channel.channel()
    if channel is None:
        return _start(comm, backend, process_sets, os.environ)
    if comm is not None and (not isinstance(comm, Sequence) or comm):
        raise ValueError(
            "horovod: init(comm=...) cannot choose ranks in an elastic job, whose ranks change. Call init() without it."
        )
    while True:
        place = channel.enter()
        try:
            started = _start(comm, backend, process_sets, {**os.environ, **place.variables})
        except (JobEndedError, BootstrapTimeout) as lost:
            _log.warning("horovod: world %d has ended during init(): %s", place.world, lost)
            continue
        channel.up()
        return started


def _start(
    comm: Sequence[int] | Any,
    backend: str | type | Sequence[str | type] | None,
    process_sets: Any,
    environ: Mapping[str, str],
) -> tuple[Job, list[_process_sets.ProcessSet]]:
    """``environ``: the variables of the launcher."""
    global _engines
    from hvd_core import bootstrap
    from hvd_core.backends.discovery.registry import host_math
    from hvd_core.backends.selection import at_init
    from hvd_core.bootstrap import affinity
    from hvd_core.config.environment import read_environment, read_log_settings
    from hvd_core.observe.settings import engine_observes
    from hvd_core.observe.watch import start as watch

    engine_type = compiled_part.load().Engine
    settings = read_environment()
    logs.configure(*read_log_settings(os.environ))
    world = bootstrap.connect(environ, deadline_s=settings.start_timeout_s, comm=comm)
    try:
        plan, plugins, static = at_init.decide(
            world, backend, settings, lambda: _compared_sets(process_sets, world.comm)
        )
        spin = settings.spin_us
        if spin is None:
            # With more ranks than cores, a rank that spins keeps the others from working.
            spin = 50.0 if affinity.enough_cores(world.local_cores, world.local_rank) else 2.0
        pinned = _followed(settings.thread_affinity, plugins.affinity_mode, world.local_rank == 0)
        core, fault = affinity.engine_core(pinned, world.local_cores, world.local_rank)
        if fault and world.local_rank == 0:
            _log.warning("host %s: %s", world.host_names[world.rank], fault)
        config = {
            "rank": world.rank,
            "size": world.size,
            "hosts": list(world.hosts),
            "host_names": list(world.host_names),
            "job": f"engine/{world.epoch}",
            # Counted by the rank's number in the launcher's job, see horovod/runner/ended_ranks.py.
            "bereaved_key": f"hvd/bereaved/{(world.members or range(world.size))[world.rank]}",
            "launcher": world.launcher_process and (world.launcher_process.fd, world.launcher_process.text),
            "links": [_link(link) for link in world.links],
            "segment_fd": world.segment_fd,
            "segment_bytes": world.segment_bytes,
            "bells": _bells(world),
            "bell_slot": world.local_rank,
            "leads_host": world.local_rank == 0,
            "store_fd": world.store_fd,
            "math_backend": host_math(),
            **plan.engine_config(world.local_rank),
            "emulation": settings.emulation,
            "spin_us": spin,
            "engine_core": -1 if core is None else core,
            "first_handle": (_engines << 40) + 1,
            "packages": os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
            "observe": engine_observes(settings, world),
            **{
                key: getattr(settings, key)
                for key in (
                    "fusion_threshold",
                    "cycle_time_ms",
                    "cache_capacity",
                    "stall_warn_s",
                    "stall_abort_s",
                    "stall_json",
                    "operation_timeout_s",
                    "log_level",
                    "log_with_time",
                    "start_timeout_s",
                    "check_consistency",
                )
            },
        }
        rings = watch.facts(world, config["observe"])
        if settings.log_to_python:
            logs.forward_engine_lines()
        if settings.doctor:
            config["doctor"] = asked_facts.doctor(world, config, rings)
        try:
            engine = engine_type(config)
        except BackendError as error:
            if _RANK_LOST.search(str(error)):
                raise bootstrap.RankLost(str(error)) from None
            raise at_init.with_alternative(error, plan) from None
        _engines += 1
        watch.start(settings, world, rings, asked_facts.backends(config))
        world.leave_init()
    except BaseException as error:
        logs.stop_forwarding()
        if isinstance(error, Exception):
            world.leave_init()  # the agreement, or the engine, has told the other ranks
        lost = world.store_lost() if isinstance(error, bootstrap.StoreLost) else None
        world.close()
        if lost is not None:
            raise lost from error
        raise
    at_init.log_report(plan, world.rank, engine)
    return Job(world, engine, plan), static


def _followed(thread_affinity: str, mode: Any, speaks: bool) -> str:
    """HOROVOD_THREAD_AFFINITY, or "" where affinity.mode of plugins.toml turns it off; logs a warning if ``speaks``."""
    if mode.value == "near-device" and speaks:
        _log.warning(
            "horovod: %s: affinity.mode near-device is not there yet; threads run as with inherit.",
            mode.source,
        )
    if mode.value != "off":
        return thread_affinity
    if thread_affinity and speaks:
        _log.warning(
            "horovod: HOROVOD_THREAD_AFFINITY=%s is not followed: %s sets affinity.mode to off.",
            thread_affinity,
            mode.source,
        )
    return ""


def _compared_sets(process_sets: Any, job_comm: Any) -> tuple[list[_process_sets.ProcessSet], str]:
    static = _static_sets(process_sets)
    return static, communicator_sets.describe(static, job_comm)


def _link(link: Any) -> dict[str, Any]:
    sock_fd = getattr(link, "sock_fd", -1)
    plain = {
        "peer": link.peer,
        "is_parent": link.is_parent,
        "subtree": list(link.subtree),
        "sock_fd": sock_fd,
    }
    if sock_fd >= 0:
        return plain | {"key": link.key}
    return plain | {
        "slot": link.slot,
        "peer_bells": tuple(link.peer_bells),
        "guard_fd": link.guard_fd,
        "peer_pid": link.peer_pid,
    }


def _bells(world: World) -> tuple[int, int]:
    for link in world.links:
        if hasattr(link, "my_bells"):
            return tuple(link.my_bells)
    return (-1, -1)


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


def _leave() -> None:
    job = current_job.current()
    if job is not None and not job.is_parents() and not job.engine.stopped:
        text = uncaught.closing_text(SHUT_DOWN, job.world.rank)
        job.engine.shutdown(text, _SHUTDOWN_SECONDS)


def _at_exit() -> None:
    uncaught.note_last()
    shutdown()


def _drop() -> None:
    """Let go of the engine, then of the descriptors it borrows."""
    job = current_job.current()
    current_job.set_current(None)
    if job is None:
        return
    _process_sets.end()
    uncaught.unwatch()
    if not job.is_parents():
        job.engine.close()
        job.world.close()
        logs.stop_forwarding()
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
    """Number of this process on its host, from 0. Raises ValueError before init()."""
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
    from hvd_core.backends.selection.host_route import homogeneous

    return homogeneous(current_job.get().world)


def backend_report() -> BackendReport:
    """Which backend serves each operation on each device type, and which setting chose it. A tuple of rows, whose text is
    a table; with the operations that ran on devices so far, and how each was served.

    Before init(): the choice of a job of one process, which imports the plugins and asks them. Raises the errors of
    init(): hvd_core.backends.BackendError or ValueError.
    """
    from hvd_core.backends.selection.at_init import report_now

    job = current_job.current()
    if job is None:
        return report_now(None)
    return report_now(job.plan, None if job.is_parents() else job.engine)


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
    "shutdown",
    "size",
    "world",
]
