"""The choice of backends as init() makes it, together with all ranks of the job; and as it would be made without one."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

from hvd_core.backends import agreement, discovery, registry
from hvd_core.backends.errors import BackendError
from hvd_core.backends.messages import reason
from hvd_core.backends.plan import AUTOMATIC, Plan
from hvd_core.backends.report import BackendReport, report
from hvd_core.backends.selection import Argument, choose
from hvd_core.config import EngineSettings, read_environment
from hvd_core.config.plugins_toml import PluginsConfig, load

_log = logging.getLogger("horovod")
_INFO = 2  # as an index of config.environment.LOG_LEVELS


def decide(
    world: Any, backend: Argument, settings: EngineSettings, process_sets: Callable[[], tuple[Any, str]]
) -> tuple[Plan, PluginsConfig, Any]:
    """The plan that all ranks have made alike, the configuration files, and the first process sets.

    ``process_sets`` makes the sets that init() was given, and a text by which they can be compared; whatever it raises is
    told to the other ranks. Raises what choose() and agreement.agree() do.
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


def with_way_out(error: BackendError, plan: Plan) -> BackendError:
    """The error of a backend that could not be opened; where nobody had asked for it, with what to do without it."""
    between = plan.ways.between
    own = between is not None and between.source == AUTOMATIC and between.backend.launchers
    if not own or f"{between.name}: " not in str(error):
        return error
    others = ",".join(b.name for b in registry.embedded() if b.automatic)
    return type(error)(
        f"{error}\n  {between.name} was chosen between hosts because of who started this job. "
        f"To do without it: HOROVOD_BACKEND={others}"
    )


def report_now(plan: Plan | None, engine: Any = None) -> BackendReport:
    """The report of ``plan``, with what ``engine`` has done so far, or, for None, of what a job of one process would
    choose with this environment."""
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


def say(plan: Plan, settings: EngineSettings, rank: int, engine: Any) -> None:
    """With HOROVOD_LOG_LEVEL=info, the report on standard error, in the engine's form; by rank 0."""
    if settings.log_level > _INFO or rank != 0:
        return
    stamp = datetime.now().strftime("[%Y-%m-%d %H:%M:%S.%f] ") if settings.log_with_time else ""
    made = report(plan, fact=engine.backend_fact)
    lines = [*str(made).splitlines(), *([f"other device types: {made.note}"] if made.note else [])]
    sys.stderr.write("".join(f"{stamp}[{rank}] horovod INFO: {line}\n" for line in lines))
    sys.stderr.flush()
