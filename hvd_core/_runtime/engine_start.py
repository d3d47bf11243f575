"""The start of one job's engine: the ranks connect, choose backends and start their engines. runtime.init() calls it.

While plugins run during the start, the native module watches the time (engine/python/process_hooks.cc), because a plugin
may
hang with the GIL held: a phase that does not return within the start timeout ends this process, with a message that names
the plugin and the phase, before the other ranks give up waiting for this one.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hvd_core._base import logs, native
from hvd_core._base.sockets import BootstrapTimeout, RankLost, StoreLost
from hvd_core._bootstrap import driver_channel
from hvd_core._config.settings import EngineSettings
from hvd_core._runtime import crash_reports
from hvd_core._runtime.current_job import Job
from hvd_core._runtime.process_sets import ProcessSet, describe_sets
from hvd_core.backends import _phases
from hvd_core.backends.errors import BackendError
from hvd_core.errors import JobEndedError

if TYPE_CHECKING:
    from hvd_core._bootstrap.world import World
    from hvd_core._core import Engine
    from hvd_core._runtime.engine_config import EngineConfig
    from hvd_core.backends._selection.job import JobBackends

_log = logging.getLogger("horovod")
# What the engine says about a rank whose end it has seen (describe(), peers_gone()).
_RANK_LOST = re.compile(r"rank \d+ \(host .*\) (died|is gone)")
_engines = 0  # engines that this process has started

Comm = Sequence[int] | Any
"""The argument `comm` of init()."""
Backends = str | type | Sequence[str | type] | None
"""The argument `backend` of init()."""


# The timeout of plugins' phases, of the start timeout: this rank reports before those that wait for it.
_PHASE_SHARE = 0.9
# Limits a phase, given in words, in the job that starts or runs; also restores the thread's floating-point control.
_limit_phase: Callable[[str], None] | None = None


def _note_phase(now: _phases.Running) -> None:
    if _limit_phase is not None:
        _limit_phase(_phases.in_words(now))


def end_phase_timeout() -> None:
    """The job has ended."""
    global _limit_phase
    _limit_phase = None


def start(comm: Comm, backend: Backends, process_sets: Any) -> tuple[Job, list[ProcessSet]]:
    """Joins the job. Returns it, and the process sets that ``process_sets`` names. Arguments and errors are those of
    runtime.init().

    In an elastic job the driver is asked for a place in a world first, and again if that world has lost a member before
    all of its members had come.
    """
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
    return driver_channel.channel() is not None


def note_end(engine: Engine) -> None:
    """An engine is about to be closed. In an elastic job, the next start() reports to the driver whether a stall ended
    it."""
    channel = driver_channel.channel()
    if channel is not None:
        channel.stalled = engine.stalled_ranks


def _start_engine(
    comm: Comm, backend: Backends, process_sets: Any, environ: Mapping[str, str]
) -> tuple[Job, list[ProcessSet]]:
    """``environ``: the variables of the launcher."""
    global _limit_phase
    from hvd_core._bootstrap.world import connect
    from hvd_core._config.settings import read_environment, read_log_settings
    from hvd_core.backends._selection import job as selection

    core = native.load()
    settings = read_environment()
    logs.configure(*read_log_settings(os.environ))
    last_calls = crash_reports.record_last_call(os.environ)
    world = connect(environ, deadline_s=settings.start_timeout_s, comm=comm)
    seconds = _PHASE_SHARE * settings.start_timeout_s

    def limit_phase(words: str) -> None:
        core.limit_phase(words, seconds, world.segment_fd, world.segment_bytes, world.rank)

    _limit_phase = limit_phase
    _phases.listen(_note_phase)
    try:
        backends, plugins, static = selection.decide(
            world, backend, settings, lambda: _compared_sets(process_sets, world.comm)
        )
        affinity = _followed(settings.thread_affinity, plugins.affinity_mode, world.local_rank == 0)
        engine = _created(core, world, settings, backends, affinity, last_calls)
        world.leave_init()
    except BaseException as error:
        logs.stop_forwarding()
        end_phase_timeout()
        if isinstance(error, Exception):
            core.tell_failed_start(world.segment_fd, world.segment_bytes, world.rank, str(error))
            world.leave_init()
        lost = world.store_lost() if isinstance(error, StoreLost) else None
        world.close()
        if lost is not None:
            raise lost from error
        raise
    selection.log_report(backends.plan, world.rank, engine)
    return Job(world, engine, backends), static


def _created(
    core: ModuleType,
    world: World,
    settings: EngineSettings,
    backends: JobBackends,
    affinity: str,
    last_calls: int,
) -> Engine:
    """The engine, while the other ranks create theirs. Raises BackendError, RankLost."""
    global _engines
    from dataclasses import replace

    from hvd_core._observe.watch import start as watch
    from hvd_core._runtime import doctor_endpoint
    from hvd_core.backends._selection import job as selection

    config = _config(world, settings, backends, affinity, last_calls)
    rings = watch.facts(world, config.observe)
    if settings.log_to_python:
        logs.forward_engine_lines()
    if settings.doctor:
        config = replace(config, doctor=doctor_endpoint.doctor(world, config, rings))
    try:
        engine: Engine = core.Engine(config.as_dict())
    except BackendError as error:
        if _RANK_LOST.search(str(error)):
            raise RankLost(str(error)) from None
        raise selection.with_alternative(error, backends.plan) from None
    _engines += 1
    watch.start(settings, world, rings, doctor_endpoint.backends(config))
    return engine


def _config(
    world: World, settings: EngineSettings, backends: JobBackends, affinity: str, last_calls: int
) -> EngineConfig:
    from hvd_core._bootstrap.affinity import engine_core, enough_cores
    from hvd_core._observe.settings import engine_observes
    from hvd_core._runtime.engine_config import PACKAGES, EngineConfig
    from hvd_core.backends._discovery.registry import host_math

    core, fault = engine_core(affinity, world.local_cores, world.local_rank)
    if fault and world.local_rank == 0:
        _log.warning("host %s: %s", world.host_names[world.rank], fault)
    spin_us = settings.spin_us
    if spin_us is None:
        # With more ranks than cores, a rank that spins keeps the others from working.
        spin_us = 50.0 if enough_cores(world.local_cores, world.local_rank) else 2.0
    watched = world.launcher_process
    return EngineConfig(
        rank=world.rank,
        size=world.size,
        hosts=list(world.hosts),
        host_names=list(world.host_names),
        job=f"engine/{world.epoch}",
        secondary_failure_key=_secondary_failure_key(world),
        elastic=is_elastic(),
        launcher=None if watched is None else (watched.fd, watched.text),
        first_handle=(_engines << 40) + 1,
        links=world.links,
        segment_fd=world.segment_fd,
        segment_bytes=world.segment_bytes,
        bells=world.eventfds,
        bell_slot=world.local_rank,
        leads_host=world.local_rank == 0,
        store_fd=world.store_fd,
        store_key=world.store_key,
        math_backend=host_math(),
        **backends.plan.engine_config(world.local_rank),
        find_device=backends.find_device,
        last_calls=last_calls,
        settings=settings,
        spin_us=spin_us,
        engine_core=-1 if core is None else core,
        packages=PACKAGES,
        observe=engine_observes(settings, world),
    )


def _secondary_failure_key(world: World) -> str:
    if world.size == 1:
        return ""
    from hvd_core._bootstrap.store.session import secondary_failure_key

    return secondary_failure_key((world.members or range(world.size))[world.rank])


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


def _compared_sets(process_sets: Any, job_comm: Any) -> tuple[list[ProcessSet], str]:
    static = static_sets(process_sets)
    return static, describe_sets(static, job_comm)


def static_sets(process_sets: Any) -> list[ProcessSet]:
    """The sets that the argument of init() lists. "dynamic" lists no set and allows sets that are added later."""
    if not isinstance(process_sets, str):
        return [s if isinstance(s, ProcessSet) else ProcessSet(s) for s in process_sets or ()]
    if process_sets.lower() != "dynamic":
        raise ValueError(f'process_sets must be a list of ProcessSet or "dynamic", but is {process_sets!r}.')
    os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
    return []
