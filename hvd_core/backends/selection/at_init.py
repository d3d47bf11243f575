"""The choice of backends in ``init()``, together with all ranks of the job; the choice for a process set; and the choice
that a job would make, for reports without a job. Called by the thread that runs ``init()`` or registers the set."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from hvd_core.backends import discovery
from hvd_core.backends.discovery import registry
from hvd_core.backends.errors import BackendError
from hvd_core.backends.messages import reason
from hvd_core.backends.selection import agreement
from hvd_core.backends.selection.backend_plan import AUTOMATIC, BackendPlan
from hvd_core.backends.selection.backend_report import BackendReport, report
from hvd_core.backends.selection.choice import Argument, choose
from hvd_core.backends.selection.plan_of_set import with_own
from hvd_core.config import EngineSettings, read_environment
from hvd_core.config.plugins_toml import PluginsConfig, load
from hvd_core.config.selection_rules import OF_SET

_log = logging.getLogger("horovod")


def decide(
    world: Any, backend: Argument, settings: EngineSettings, process_sets: Callable[[], tuple[Any, str]]
) -> tuple[BackendPlan, PluginsConfig, Any]:
    """The plan on which all ranks agree, the configuration files, and the first process sets.

    ``process_sets`` returns the sets that init() was given, and a text by which ranks compare them; if it raises, the
    other ranks learn the reason. Raises what choose() and agreement.agree() raise.
    """
    topic = agreement.SETS
    try:
        static, sets = process_sets()
        topic = "error"
        config = load(os.environ)
        plan = choose(
            os.environ,
            config,
            world,
            backend,
            settings.hierarchical_allreduce,
            settings.hierarchical_allgather,
        )
    except Exception as error:
        agreement.agree(world, agreement.failure(reason(error), topic, os.environ), settings.start_timeout_s)
        raise
    agreement.agree(world, agreement.statement(plan, os.environ, sets), settings.start_timeout_s)
    if world.rank == 0:
        discovery.warn_once(lambda name: config.backend(name).distribution is not None)
    return plan, config, static


def for_set(job: Any, ranks: Sequence[int], backend: Argument) -> tuple[dict[str, Any], str]:
    """The choice for a process set of ``ranks`` of a current_job.Job: the keys of the engine's configuration, and a text
    by which all ranks compare it, members or not. Raises what choose() raises."""
    world, settings = job.world, read_environment()
    members = SimpleNamespace(
        hosts=[world.hosts[rank] for rank in ranks],
        host_names=[world.host_names[rank] for rank in ranks],
        rank=world.rank,
        launcher=world.launcher,
        launcher_used_up=world.launcher_used_up,
    )
    own = choose(
        os.environ,
        load(os.environ),
        members,
        backend,
        settings.hierarchical_allreduce,
        settings.hierarchical_allgather,
        OF_SET,
    )
    plan = with_own(job.plan, own, OF_SET)
    chosen = agreement.statement(plan, {})["choice"]
    text = "; ".join(f"{device}: {choice}" for device, choice in chosen.items() if device != "hvd-core")
    return plan.engine_config(world.local_rank), text


def with_alternative(error: BackendError, plan: BackendPlan) -> BackendError:
    """The error of a backend that could not be opened. If the automatic choice picked the backend for the launcher's
    sake, the result also tells how to run without it."""
    between = plan.host_route.between
    own = between is not None and between.source == AUTOMATIC and between.backend.launchers
    if not own or f"{between.name}: " not in str(error):
        return error
    others = ",".join(b.name for b in registry.embedded() if b.automatic)
    return type(error)(
        f"{error}\n  {between.name} was chosen between hosts because its launcher started this job. "
        f"To run without it: HOROVOD_BACKEND={others}"
    )


def report_now(plan: BackendPlan | None, engine: Any = None) -> BackendReport:
    """The report of ``plan``, with the operations that ``engine`` has carried out on devices so far, those included
    whose tensors a front end has copied through host memory.

    If ``plan`` is None: the report of the plan that a job of one process would choose in this environment."""
    if plan is None:
        settings = read_environment()
        plan = choose(
            os.environ,
            load(os.environ),
            None,
            None,
            settings.hierarchical_allreduce,
            settings.hierarchical_allgather,
        )
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
