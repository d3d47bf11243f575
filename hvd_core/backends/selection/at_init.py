"""The choice of backends in ``init()``, together with all ranks of the job; and the choice that a job would make, for
reports without a job. Called by the thread that runs ``init()``."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from hvd_core.backends import discovery
from hvd_core.backends.discovery import registry
from hvd_core.backends.errors import BackendError
from hvd_core.backends.messages import reason
from hvd_core.backends.selection import agreement
from hvd_core.backends.selection.backend_plan import AUTOMATIC, BackendPlan
from hvd_core.backends.selection.backend_report import BackendReport, report
from hvd_core.backends.selection.choice import Argument, choose
from hvd_core.config import EngineSettings, read_environment
from hvd_core.config.plugins_toml import PluginsConfig, load

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
