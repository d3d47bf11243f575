"""horovod.spark.run, and what HorovodRunner shares with it: a function on the ranks of one barrier stage, driver's side.

Spark starts, places and ends the tasks. The driver holds the job's store and the log server. Any thread may call.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import secrets
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from horovod._runner.functions import checked, pickled
from horovod._runner.output import Output, Sink
from horovod.spark import _ranks
from horovod.spark._cluster import (
    active_context,
    check_barrier,
    check_encryption,
    driver_host,
    wait_for_slots,
)
from horovod.spark._logs import LogServer
from horovod.spark._stage import Stage, forget, lost_executor, shortened, task_function
from hvd_core._base.sockets import join_address
from hvd_core._bootstrap.store import StoreClient, StoreServer
from hvd_core._config.settings import positive_seconds, seconds_of

_FAILED_TASK = re.compile(r"ResultTask\(\d+, (\d+)\)")


@dataclass(frozen=True)
class Options:
    """Of a job. `num_proc`: None for all slots of the cluster. `slots_s`: how long executors may take to register;
    `begin_s`: how long the tasks may wait for free slots after that, None for any time. `output`: None if the driver
    shows only the messages of log_to_driver()."""

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
        stage = Stage(context, options.num_proc or found, task_function("barrier", plan, sent), barrier=True)
        stage.follow(store, options.begin_s)
        if stage.error is not None:
            failure = _failure(stage.error, store)
            raise failure from failure.__cause__
        results = dict(stage.value)
    return [pickle.loads(results[rank])[1] for rank in sorted(results)]


def _failure(error: BaseException, store: StoreClient) -> BaseException:
    """The exception for a stage that failed: that of the rank which failed first, not Spark's message of 200 lines."""
    reported = _ranks.reported_failures(store)
    own = [entry for entry in reported if not entry[0].secondary]
    said = str(error)
    lost = lost_executor(error)
    if lost is not None and not own:
        return RuntimeError(f"{_lost_rank(said, store)}{lost}")
    if not reported:
        return shortened(error)
    failure, host, python = (own or reported)[0]
    return failure.exception(host, python)


def _lost_rank(said: str, store: StoreClient) -> str:
    """ "Rank 1 on host h is lost: " if Spark's message names its task."""
    tasks, task = _ranks.reported_begin(store), _FAILED_TASK.search(said)
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


# ---- The arguments of horovod.spark.run


class DriverOutput(Output):
    """The ranks' output on streams of the driver. `stdout`, `stderr`: objects with write() and flush(), None for those of
    this process."""

    def __init__(
        self, num_proc: int, stdout: Any = None, stderr: Any = None, timestamp: bool = False
    ) -> None:
        super().__init__(num_proc, None, timestamp)
        if stdout is not None:
            self.stdout = Sink(stdout)
        if stderr is not None:
            self.stderr = self.stdout if stderr is stdout else Sink(stderr)


def start_seconds(given: float | None, default: float | None = None) -> float:
    """The time for executors to register. Raises ValueError for a wrong number."""
    if given is not None:
        return positive_seconds(str(given), "start_timeout")
    return seconds_of(os.environ, "HOROVOD_SPARK_START_TIMEOUT", default)


def interface_variables(nics: Iterable[str] | None) -> dict[str, str]:
    """The ranks' variables for the network interfaces that were named."""
    names = sorted([nics] if isinstance(nics, str) else nics or ())
    return {"HOROVOD_GLOO_IFACE": names[0], "NCCL_SOCKET_IFNAME": ",".join(names)} if names else {}


def run_barrier(given: dict[str, Any]) -> list[Any]:
    """Implements horovod.spark.run. `given`: its parameters by name."""
    call = checked("horovod.spark.run", given["fn"], given["args"], given["kwargs"])
    if given["use_mpi"]:
        raise ValueError(
            "horovod.spark.run(use_mpi=True): the ranks of a Spark job are started by Spark, not by mpirun. Leave "
            "use_mpi out; the backend mpi cannot be used on Spark."
        )
    if given["extra_mpi_args"]:
        warnings.warn(
            "horovod.spark.run(extra_mpi_args=...) has no effect: no mpirun starts the ranks", stacklevel=3
        )
    context = active_context("horovod.spark.run")
    num_proc = given["num_proc"] if given["num_proc"] is not None else context.defaultParallelism
    if num_proc < 1:
        raise ValueError(f"horovod.spark.run(num_proc={num_proc}): at least 1 process is needed")
    variables = driver_variables(given["env"]) | interface_variables(given["nics"])
    seconds = start_seconds(given["start_timeout"])
    output = DriverOutput(
        num_proc, given["stdout"], given["stderr"], bool(given["prefix_output_with_timestamp"])
    )
    options = Options(num_proc, seconds, seconds, variables, given["executable"], output)
    function = pickled("horovod.spark.run", *call)
    return run_barrier_job(context, function, options)
