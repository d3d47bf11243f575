"""The one engine of this process, shared by all frameworks: init, shutdown, and who am I.

All framework modules and the NumPy face go through here, so that ``hvd.init()`` of two of them in one process means one
engine. Any thread may call; init and shutdown take turns.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hvd_core import communicator_sets, uncaught
from hvd_core import process_sets as _process_sets
from hvd_core.backends.errors import BackendError
from hvd_core.errors import HorovodInternalError

if TYPE_CHECKING:
    from hvd_core._core import Engine
    from hvd_core.backends.plan import Plan
    from hvd_core.backends.report import BackendReport
    from hvd_core.bootstrap import World

NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."
SHUT_DOWN = (
    "Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to allreduce, "
    "allgather or broadcast a tensor after one of the ranks finished execution. If the shutdown was caused by an "
    "exception, you should see the exception in the log before the first shutdown message."
)
_SHUTDOWN_SECONDS = 60.0
_log = logging.getLogger("horovod")


class _State:
    """What one init() made. ``pid`` tells a forked child that none of it is its own."""

    def __init__(self, world: World, engine: Engine, plan: Plan) -> None:
        self.world, self.engine, self.plan = world, engine, plan
        self.pid = os.getpid()


_lock = threading.RLock()
_state: _State | None = None
_registered = False
_engines = 0


def init(
    comm: Sequence[int] | Any = None,
    process_sets: Any = None,
    backend: str | type | Sequence[str | type] | None = None,
) -> None:
    """Bring up the engine, together with all ranks of the job. A second call before shutdown() starts nothing, also when
    the job has ended meanwhile.

    ``comm``: None for all ranks that the launcher started, or a list of some of them, which make a job of their own: its
    ranks are in the order of the list. Only the members call init(), all with the same list; others may be in another job
    at the same time. Or an mpi4py communicator, whose processes are the job: it is duplicated for the time of the job.

    ``process_sets``: a list of ProcessSet or of lists of ranks, the same on all ranks, or "dynamic" for sets that are
    added later (HOROVOD_DYNAMIC_PROCESS_SETS=1). ``backend``: a name, a subclass of hvd_core.backends.PythonBackend, or
    an ordered list of these, instead of HOROVOD_BACKEND.

    Raises ValueError for arguments or environment variables that make no sense, also for lists of ranks that differ
    between their members, hvd_core.bootstrap.BootstrapError when the ranks do not come together,
    hvd_core.backends.errors.BackendError when no backend can be used, NotImplementedError for process sets that
    communicators define where ``comm`` is none.
    """
    global _state, _registered
    with _lock:
        if _state is not None:
            _check_same_job(comm, _state.world)
            if _state.engine.stopped or _state.pid != os.getpid():
                return  # the job has ended, or this is a fork: operations will say so
            static = _static_sets(process_sets)
        else:
            _drop()
            try:
                _state, static = _start(comm, backend, process_sets)
            except (BackendError, ValueError) as error:
                if str(error).startswith("horovod: "):
                    # The text says it all. Every rank prints it, and what led to it would bury it.
                    error.with_traceback(None)
                raise error
            if not _registered:
                atexit.register(_at_exit)
                _registered = True
            uncaught.watch(_leave)
            if _state.world.comm is not None:
                _process_sets.global_process_set.mpi_comm = comm
        # The engine stays up when these are refused: a second init() with a clean list succeeds.
        world = _state.world
        _process_sets.begin(world.size, *communicator_sets.resolved(static, world.comm, world.size))


def _static_sets(process_sets: Any) -> list[_process_sets.ProcessSet]:
    if not isinstance(process_sets, str):
        make = _process_sets.ProcessSet
        return [s if isinstance(s, make) else make(s) for s in process_sets or ()]
    if process_sets.lower() != "dynamic":
        raise ValueError(f'process_sets must be a list of ProcessSet or "dynamic", but is {process_sets!r}.')
    os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
    return []


def _check_same_job(comm: Sequence[int] | Any, world: World) -> None:
    """A second init() may name the ranks again, but not others."""
    from hvd_core.bootstrap import membership

    running = world.members or tuple(range(world.size))
    if membership.is_communicator(comm):
        from hvd_core.bootstrap.mpi_comm import members_of

        if members_of(comm) == running:
            return
        asked = "an MPI communicator of other processes"
    else:
        members = () if comm is None else membership.checked(comm)
        if members in ((), running):
            return
        asked = membership.shorten(members)
    raise ValueError(
        f"horovod: init(comm=...) names {asked}, but this process is in a job of ranks {membership.shorten(running)} "
        "already. Call shutdown() first."
    )


def _start(
    comm: Sequence[int] | Any, backend: str | type | Sequence[str | type] | None, process_sets: Any
) -> tuple[_State, list[_process_sets.ProcessSet]]:
    global _engines
    from hvd_core import bootstrap
    from hvd_core._core import Engine
    from hvd_core.backends import at_init
    from hvd_core.backends.registry import host_math
    from hvd_core.bootstrap import affinity
    from hvd_core.config import read_environment

    settings = read_environment()
    world = bootstrap.connect(deadline_s=settings.start_timeout_s, comm=comm)
    try:
        plan, plugins, static = at_init.decide(
            world, backend, settings, lambda: _compared_sets(process_sets, world.comm)
        )
        spin = settings.spin_us
        if spin is None:
            # With more ranks than cores, whoever looks keeps the others from working.
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
            **{
                key: getattr(settings, key)
                for key in (
                    "fusion_threshold",
                    "cycle_time_ms",
                    "cache_capacity",
                    "stall_warn_s",
                    "stall_abort_s",
                    "log_level",
                    "log_with_time",
                    "start_timeout_s",
                )
            },
        }
        try:
            engine = Engine(config)
        except BackendError as error:
            raise at_init.with_way_out(error, plan) from None
        _engines += 1
    except BaseException:
        world.close()
        raise
    at_init.say(plan, settings, world.rank, engine)
    return _State(world, engine, plan), static


def _followed(thread_affinity: str, mode: Any, speaks: bool) -> str:
    """HOROVOD_THREAD_AFFINITY as far as [affinity] mode of plugins.toml follows it; said where it does not."""
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
        return plain
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
        if _state is None:
            return
        _leave()
        if _state.pid == os.getpid():
            _state.world.linger()
        _drop()


def _leave() -> None:
    state = _state
    if state is not None and state.pid == os.getpid() and not state.engine.stopped:
        text = uncaught.closing_text(SHUT_DOWN, state.world.rank)
        state.engine.shutdown(text, _SHUTDOWN_SECONDS)


def _at_exit() -> None:
    uncaught.note_last()
    shutdown()


def _drop() -> None:
    """Let go of the engine, then of the descriptors it borrows."""
    global _state
    state, _state = _state, None
    if state is None:
        return
    _process_sets.end()
    uncaught.unwatch()
    if state.pid != os.getpid():
        return
    state.engine.close()
    state.world.close()


def is_initialized() -> bool:
    """Whether init() has been called, and shutdown() has not."""
    return _state is not None


def _current() -> _State:
    state = _state
    if state is None:
        raise ValueError(NOT_INITIALIZED)
    return state


def engine() -> Engine:
    """The engine. Raises ValueError before init()."""
    state = _state
    if state is None:
        raise ValueError(NOT_INITIALIZED)
    return state.engine


def world() -> World:
    """The job as the bootstrap found it. Raises ValueError before init()."""
    return _current().world


def plan() -> Plan:
    """The backends that all ranks have chosen. Raises ValueError before init()."""
    return _current().plan


def backend_fact(backend: str, key: str) -> str | None:
    """What a backend of this job tells of its library as it runs here; None where it does not know, or not yet, and in a
    forked child. Raises ValueError before init()."""
    state = _current()
    return state.engine.backend_fact(backend, key) if state.pid == os.getpid() else None


def rank() -> int:
    """Number of this process in the job, from 0. Raises ValueError before init()."""
    return _current().world.rank


def size() -> int:
    """Number of processes in the job. Raises ValueError before init()."""
    return _current().world.size


def local_rank() -> int:
    """Number of this process on its host, from 0. Raises ValueError before init()."""
    return _current().world.local_rank


def local_size() -> int:
    """Number of processes of the job on this host. Raises ValueError before init()."""
    return _current().world.local_size


def cross_rank() -> int:
    """Index of this host among those that have a process with this local rank. Raises ValueError before init()."""
    return _current().world.cross_rank


def cross_size() -> int:
    """Number of hosts that have a process with this local rank. Raises ValueError before init()."""
    return _current().world.cross_size


def is_homogeneous() -> bool:
    """Whether all hosts have the same number of processes. Raises ValueError before init()."""
    from hvd_core.backends.ways import homogeneous

    return homogeneous(_current().world)


def backend_report() -> BackendReport:
    """Which backend serves each operation on each device type, and who chose it: rows, and as a text a table; with what
    was done on devices so far, and how.

    Before init(): what a job of one process would choose now, which imports and asks the plugins that this takes. Raises
    what init() would raise, hvd_core.backends.BackendError or ValueError.
    """
    from hvd_core.backends.at_init import report_now

    state = _state
    if state is None:
        return report_now(None)
    # A forked child's copy of the engine is not to be touched.
    return report_now(state.plan, state.engine if state.pid == os.getpid() else None)


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
