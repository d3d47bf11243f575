"""Runs a function on the ranks of one barrier stage: the driver's side. Spark starts, places and ends the tasks.

The driver holds the job's store and the log server. Any thread may call.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from horovod._runner.output import Output
from horovod.spark import reports
from horovod.spark.cluster import check_barrier, check_encryption, driver_host, wait_for_slots
from horovod.spark.log_server import LogServer
from horovod.spark.stage import Stage, forget, lost_executor, shortened, task_function
from hvd_core._base.sockets import join_address
from hvd_core._bootstrap.store import StoreClient, StoreServer

_FAILED_TASK = re.compile(r"ResultTask\(\d+, (\d+)\)")


@dataclass(frozen=True)
class Options:
    """Of a job. `num_proc`: None for all slots of the cluster. `slots_s`: how long executors may take to register;
    `begin_s`: how long the tasks may wait for free slots after that, None for ever. `output`: None if the driver shows
    only the texts of log_to_driver()."""

    num_proc: int | None
    slots_s: float
    begin_s: float | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None
    output: Output | None = None
    show: Callable[[int, str], None] = lambda rank, text: print(text, flush=True)


def run_barrier_job(context: Any, function: bytes, options: Options) -> list[Any]:
    """What the pickled (function, args, kwargs) returns on each rank, in the order of the ranks.

    Raises NotEnoughSlots; RuntimeError with the traceback of the rank that failed first, its exception as the cause; and
    KeyboardInterrupt, after the job was cancelled.
    """
    check_barrier(context)
    check_encryption(context, {**os.environ, **options.variables})
    found = wait_for_slots(context, options.num_proc, options.slots_s)
    listen, name = driver_host(context)
    secret = secrets.token_bytes(32)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(StoreServer(listen, secret))
        log = LogServer(listen, secret, options.output, options.show)
        stack.callback(log.close)
        store = StoreClient(server.address, secret)
        stack.callback(store.close)
        port = int(server.address.rpartition(":")[2])
        plan = {
            "store": join_address(name, port),
            "log": join_address(name, log.port),
            "secret": secret,
            "variables": dict(options.variables),
            "python": options.python,
            "show_output": options.output is not None,
        }
        # Large closures make the start of each task slow; the function may hold a model.
        sent = context.broadcast(function)
        stack.callback(forget, sent)
        stage = Stage(
            context, options.num_proc or found, task_function("barrier_task", plan, sent), barrier=True
        )
        stage.follow(store, options.begin_s)
        if stage.error is not None:
            failure = _failure(stage.error, store)
            raise failure from failure.__cause__
        results = dict(stage.value)
    return [pickle.loads(results[rank])[1] for rank in sorted(results)]


def _failure(error: BaseException, store: StoreClient) -> BaseException:
    """The exception for a stage that failed: that of the rank which failed first, not Spark's text of 200 lines."""
    told = reports.failures(store)
    own = [entry for entry in told if not entry[0].bereaved]
    said = str(error)
    lost = lost_executor(error)
    if lost is not None and not own:
        return RuntimeError(f"{_lost_rank(said, store)}{lost}")
    if not told:
        return shortened(error)
    failure, host, python = (own or told)[0]
    return failure.exception(host, python)


def _lost_rank(said: str, store: StoreClient) -> str:
    """ "Rank 1 on host h is lost: " if Spark's text tells its task."""
    tasks, task = reports.begun(store), _FAILED_TASK.search(said)
    if tasks is None or task is None or int(task[1]) >= len(tasks):
        return "An executor is lost: "
    host, rank = tasks[int(task[1])]
    return f"Rank {rank} on host {host} is lost: "


def driver_variables(given: Mapping[str, str] | None) -> dict[str, str]:
    """The ranks' variables: Horovod's and NCCL's of this process (HOROVOD_TIMELINE, for instance), and `given`."""
    own = {name: value for name, value in os.environ.items() if _is_passed(name)}
    return {**own, **{str(name): str(value) for name, value in (given or {}).items()}}


def _is_passed(name: str) -> bool:
    return name.startswith(("HOROVOD_", "NCCL_")) and _OF_A_JOB.fullmatch(name) is None


# The place and the secret of a job that this process is a rank of are not those of the new one.
_OF_A_JOB = re.compile(
    r"HOROVOD_(RANK|SIZE|LOCAL_RANK|LOCAL_SIZE|CROSS_RANK|CROSS_SIZE|HOSTNAME|STORE|SECRET_KEY|EPOCH|ELASTIC.*|RUN_.*"
    r"|GLOO_RENDEZVOUS_.*|CONTROLLER|BACKEND_SPEC|SPARK_LOG_FD)"
)
