"""The limit of a plugin's phases in a job. A phase that does not come back within the start timeout ends this process,
with a message that names the plugin and the phase, before the other ranks give up waiting for this one.

The compiled part keeps the time, because a plugin may hang with Python's lock (engine/bind/plugin_phases.cc). It also
restores the thread's floating-point control after the phases.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hvd_core._base import logs, native
from hvd_core._config.settings import EngineSettings, variable_of
from hvd_core._runtime import crash_reports, doctor_endpoint
from hvd_core._runtime.current_job import Job
from hvd_core._runtime.process_sets import ProcessSet, describe_sets
from hvd_core.backends import _phases
from hvd_core.backends.errors import BackendError
from hvd_core.errors import JobEndedError

if TYPE_CHECKING:
    from hvd_core._bootstrap import World


# Of the start timeout, so that this rank speaks before those that wait for it.
_SHARE = 0.9

_limited_job: tuple[ModuleType, World, float] | None = None


def limit_phases(compiled: ModuleType, world: World, start_timeout_s: float) -> None:
    """Limit the phases that run in this job."""
    global _limited_job
    _limited_job = (compiled, world, _SHARE * start_timeout_s)
    _phases.listen(_note)


def end_phase_limit() -> None:
    """The job has ended."""
    global _limited_job
    _limited_job = None


def _note(now: _phases.Running) -> None:
    if _limited_job is not None:
        compiled, world, seconds = _limited_job
        compiled.limit_phase(
            _phases.in_words(now), seconds, world.segment_fd, world.segment_bytes, world.rank
        )


# The start of one job: the ranks meet, choose backends and start their engines. runtime.init() calls it.

_log = logging.getLogger("horovod")
# What the engine says about a rank whose end it has seen (describe(), peers_gone()).
_RANK_LOST = re.compile(r"rank \d+ \(host .*\) (died|is gone)")
_engines = 0  # engines that this process has started


def start(
    comm: Sequence[int] | Any, backend: str | type | Sequence[str | type] | None, process_sets: Any
) -> tuple[Job, list[ProcessSet]]:
    """Join the job; its facts, and the process sets that ``process_sets`` names. Arguments and errors are those of
    runtime.init().

    In an elastic job the driver is asked for a place in a world first, and again if that world has lost a member before
    all of its members had come.
    """
    from hvd_core._bootstrap import BootstrapTimeout, driver_channel

    channel = driver_channel.channel()
    if channel is None:
        return _start_engine(comm, backend, process_sets, os.environ)
    if comm is not None and (not isinstance(comm, Sequence) or comm):
        raise ValueError(
            "horovod: init(comm=...) cannot choose ranks in an elastic job, whose ranks change. Call init() without it."
        )
    while True:
        place = channel.enter()
        try:
            started = _start_engine(comm, backend, process_sets, {**os.environ, **place.variables})
        except (JobEndedError, BootstrapTimeout) as lost:
            _log.warning("horovod: world %d has ended during init(): %s", place.world, lost)
            continue
        channel.up()
        return started


def is_elastic() -> bool:
    """Whether ranks come and go in the job that this process belongs to."""
    from hvd_core._bootstrap import driver_channel

    return driver_channel.channel() is not None


def note_end(engine: Any) -> None:
    """An engine is about to be closed. In an elastic job, the next start() tells the driver whether a stall ended it."""
    from hvd_core._bootstrap import driver_channel

    channel = driver_channel.channel()
    if channel is not None:
        channel.stalled = engine.stalled_ranks


def _start_engine(
    comm: Sequence[int] | Any,
    backend: str | type | Sequence[str | type] | None,
    process_sets: Any,
    environ: Mapping[str, str],
) -> tuple[Job, list[ProcessSet]]:
    """``environ``: the variables of the launcher."""
    global _engines
    from hvd_core import _bootstrap
    from hvd_core._bootstrap import affinity, limits
    from hvd_core._config.settings import read_environment, read_log_settings
    from hvd_core._observe.settings import engine_observes
    from hvd_core._observe.watch import start as watch
    from hvd_core.backends._discovery.registry import host_math
    from hvd_core.backends._selection import job

    compiled = native.load()
    settings = read_environment()
    logs.configure(*read_log_settings(os.environ))
    last_calls = crash_reports.record_last_call(os.environ)
    world = _bootstrap.connect(environ, deadline_s=settings.start_timeout_s, comm=comm)
    limit_phases(compiled, world, settings.start_timeout_s)
    try:
        backends, plugins, static = job.decide(
            world, backend, settings, lambda: _compared_sets(process_sets, world.comm)
        )
        plan = backends.plan
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
            # Counted by the rank's number in the launcher's job, see horovod/_runner/failures.py.
            "bereaved_key": f"hvd/bereaved/{(world.members or range(world.size))[world.rank]}",
            "elastic": is_elastic(),
            "launcher": world.launcher_process and (world.launcher_process.fd, world.launcher_process.text),
            "links": [_link(link) for link in world.links],
            "segment_fd": world.segment_fd,
            "segment_bytes": world.segment_bytes,
            "bells": _bells(world),
            "bell_slot": world.local_rank,
            "leads_host": world.local_rank == 0,
            "store_fd": world.store_fd,
            "store_key": world.store_key,
            "last_calls": last_calls,
            "math_backend": host_math(),
            **plan.engine_config(world.local_rank),
            "find_device": backends.find_device,
            "emulation": settings.emulation,
            "overlap_levels": settings.hierarchical_overlap,
            "spin_us": spin,
            "engine_core": -1 if core is None else core,
            "first_handle": (_engines << 40) + 1,
            "packages": str(Path(__file__).resolve().parents[2]),
            **_autotune(settings),
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
            config["doctor"] = doctor_endpoint.doctor(world, config, rings)
        try:
            engine = compiled.Engine(config)
        except BackendError as error:
            if _RANK_LOST.search(str(error)):
                raise _bootstrap.RankLost(str(error)) from None
            raise job.with_alternative(error, plan) from None
        _engines += 1
        watch.start(settings, world, rings, doctor_endpoint.backends(config))
        world.leave_init()
    except BaseException as error:
        logs.stop_forwarding()
        end_phase_limit()
        if isinstance(error, Exception):
            why = str(limits.explained(error) or error)
            compiled.tell_failed_start(world.segment_fd, world.segment_bytes, world.rank, why)
            world.leave_init()
        lost = world.store_lost() if isinstance(error, _bootstrap.StoreLost) else None
        world.close()
        if lost is not None:
            raise lost from error
        raise
    job.log_report(plan, world.rank, engine)
    return Job(world, engine, backends), static


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


def _autotune(settings: EngineSettings) -> dict[str, Any]:
    """What the search may change: values that the user has chosen stay."""
    if not settings.autotune:
        return {}

    def is_free(name: str) -> bool:
        return not os.environ.get(variable_of(name), "").strip()

    return {
        "autotune": {
            "threshold": is_free("fusion_threshold"),
            "delay": is_free("cycle_time_ms"),
            "warmup_samples": settings.autotune_warmup_samples,
            "steps_per_sample": settings.autotune_steps_per_sample,
            "max_samples": settings.autotune_max_samples,
            "log": settings.autotune_log,
        }
    }


def _compared_sets(process_sets: Any, job_comm: Any) -> tuple[list[ProcessSet], str]:
    static = static_sets(process_sets)
    return static, describe_sets(static, job_comm)


def _link(link: Any) -> dict[str, Any]:
    sock_fd = getattr(link, "sock_fd", -1)
    plain = {
        "peer": link.peer,
        "is_parent": link.is_parent,
        "subtree": list(link.subtree),
        "sock_fd": sock_fd,
    }
    if sock_fd >= 0:
        return plain | {"key": link.key, "encrypted": link.encrypted}
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


def static_sets(process_sets: Any) -> list[ProcessSet]:
    """The sets that the argument of init() lists. "dynamic" lists no set and allows sets that are added later."""
    if not isinstance(process_sets, str):
        return [s if isinstance(s, ProcessSet) else ProcessSet(s) for s in process_sets or ()]
    if process_sets.lower() != "dynamic":
        raise ValueError(f'process_sets must be a list of ProcessSet or "dynamic", but is {process_sets!r}.')
    os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
    return []
