"""The choice of backends in ``init()``, together with all ranks of the job; the choice for a process set; and the choice
that a job would make, for reports without a job. Called by the thread that runs ``init()`` or registers the set.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from hvd_core._config.plugins_toml import PluginsConfig, load
from hvd_core._config.selection_rules import OF_SET
from hvd_core._config.settings import EngineSettings
from hvd_core.backends._discovery import registry
from hvd_core.backends._messages import reason
from hvd_core.backends._selection import agreement, options
from hvd_core.backends._selection.choice import Argument, Choice, choice_for, choose
from hvd_core.backends._selection.plan import (
    AUTOMATIC,
    BackendPlan,
    BackendReport,
    DeviceRoutes,
    report,
    with_own,
)
from hvd_core.backends.errors import BackendError

_log = logging.getLogger("horovod")


class JobBackends:
    """The backends of one job: ``plan``, on which all ranks agreed in init(), and those of a device type that no rule
    names, which are looked for when this process has the first tensor of the type. The engine compares the choices of
    the ranks then."""

    def __init__(self, choice: Choice, plan: BackendPlan, local_rank: int) -> None:
        self.plan = plan
        self._choice, self._local_rank = choice, local_rank
        self._why_not: dict[str, str] = {}
        self._lock = threading.Lock()

    def find_device(self, device_type: str) -> tuple[dict[str, Any] | None, str]:
        """The engine's configuration for a device type, or None and why no backend serves it. The first call for a type
        may run the code of plugins. Any thread."""
        with self._lock:
            found = self._known(device_type)
            if found is None and device_type not in self._why_not:
                found = self._looked_for(device_type)
            if found is None:
                return None, self._why_not[device_type]
            choice = agreement.of_device(self.plan, found)
            return {**found.engine_config(self._local_rank), "choice": choice}, ""

    def why_not(self, device_type: str) -> str:
        """Why no backend serves a device type; "" if that is not known."""
        return self._why_not.get(device_type) or self.plan.note

    def _known(self, device_type: str) -> DeviceRoutes | None:
        return next((d for d in self.plan.devices if d.type == device_type), None)

    def _looked_for(self, device_type: str) -> DeviceRoutes | None:
        try:
            found = self._choice.automatic(device_type, self.plan)
            if found is not None:
                options.check(found.backends(), os.environ, self._choice.backends.names)
        except (BackendError, ValueError) as error:
            self._why_not[device_type] = reason(error)
            return None
        if found is None:
            self._why_not[device_type] = self._choice.why_not()
            return None
        self.plan = replace(self.plan, devices=(*self.plan.devices, found))
        return found


def decide(
    world: Any, backend: Argument, settings: EngineSettings, process_sets: Callable[[], tuple[Any, str]]
) -> tuple[JobBackends, PluginsConfig, Any]:
    """The backends on which all ranks agree, the configuration files, and the first process sets.

    ``process_sets`` returns the sets that init() was given, and a text by which ranks compare them; if it raises, the
    other ranks learn the reason. Raises what choose() and agreement.agree() raise.
    """
    topic = agreement.SETS
    try:
        static, sets = process_sets()
        topic = "error"
        config = load(os.environ)
        choice, plan = choice_for(os.environ, config, world, backend)
    except Exception as error:
        agreement.agree(world, agreement.failure(reason(error), topic, os.environ), settings.start_timeout_s)
        raise
    agreement.agree(world, agreement.statement(plan, os.environ, sets), settings.start_timeout_s)
    return JobBackends(choice, plan, world.local_rank), config, static


def for_set(job: Any, ranks: Sequence[int], backend: Argument) -> tuple[dict[str, Any], str]:
    """The choice for a process set of ``ranks`` of a current_job.Job: the keys of the engine's configuration, and a text
    by which all ranks compare it, members or not. Raises what choose() raises."""
    world = job.world
    members = SimpleNamespace(
        hosts=[world.hosts[rank] for rank in ranks],
        host_names=[world.host_names[rank] for rank in ranks],
        rank=world.rank,
        launcher=world.launcher,
        launcher_used_up=world.launcher_used_up,
    )
    own = choose(os.environ, load(os.environ), members, backend, called=OF_SET)
    for device in own.devices:
        job.engine.serves(device.type)  # the set uses the devices that the job opens
    plan = with_own(job.plan, own, OF_SET)
    chosen = agreement.statement(plan, {})["choice"]
    text = "; ".join(f"{device}: {choice}" for device, choice in chosen.items() if device != "hvd-core")
    return plan.engine_config(world.local_rank), text


def with_alternative(error: BackendError, plan: BackendPlan) -> BackendError:
    """The error of a backend that could not be opened. If the automatic choice picked the backend for the launcher's
    sake, the result also tells how to run without it."""
    between = plan.host_route.between
    if between is None or plan.host_route.source != AUTOMATIC or not between.launchers:
        return error
    if f"{between.name}: " not in str(error):
        return error
    others = ",".join(b.name for b in registry.embedded() if b.automatic)
    return type(error)(
        f"{error}\n  {between.name} was chosen between hosts because its launcher started this job. "
        f"To run without it: HOROVOD_BACKEND={others}"
    )


def report_now(plan: BackendPlan | None, engine: Any = None) -> BackendReport:
    """The report of ``plan``, with the operations that ``engine`` has carried out on devices so far, those included
    whose tensors a front end has copied through host memory.

    If ``plan`` is None: the report of the plan that a job of one process would choose in this environment, with all
    devices of this machine."""
    if plan is None:
        choice, plan = choice_for(os.environ, load(os.environ))
        plan = choice.with_devices_here(plan)
    if engine is None:
        return report(plan)
    return report(plan, info=engine.backend_info(), fact=engine.backend_fact)


def log_report(plan: BackendPlan, rank: int, engine: Any) -> None:
    """Write the report to the log, at the level info. Only rank 0 writes."""
    if rank != 0 or not _log.isEnabledFor(logging.INFO):
        return
    table = report(plan, fact=engine.backend_fact)
    others = [f"other device types: {table.note}; {table.unserved}"] if table.note else []
    for line in [*str(table).splitlines(), *others]:
        _log.info("%s", line)
