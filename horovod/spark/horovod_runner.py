"""Implements sparkdl.HorovodRunner, as Databricks documents it (packages/sparkdl has the class itself).

A negative number of processes runs them on the driver's machine, without Spark; a positive one as a barrier job.
"""

from __future__ import annotations

import os
import pickle
import secrets
import socket
import sys
import warnings
from collections.abc import Callable
from typing import Any

from horovod._runner.environment import store_environment
from horovod._runner.failures import EndedRanks
from horovod._runner.functions import FunctionMemory, checked, pickled, read_all, write_all
from horovod._runner.local_ranks import LocalRanks
from horovod._runner.site import RankSpec
from horovod.spark._barrier_job import (
    DriverOutput,
    Options,
    RankJob,
    driver_variables,
    rank_failure,
    run_barrier_job,
    start_seconds,
)
from horovod.spark._channel import DESCRIPTOR
from horovod.spark._cluster import active_context
from horovod.spark._ranks import TaskFacts, assign, base_environment, rank_command
from hvd_core._bootstrap.store import StoreServer

VERBOSITIES = ("all", "log_callback_only")
# A number that the cluster cannot run is an error soon; HOROVOD_SPARK_START_TIMEOUT changes it.
_SLOTS_S = 60


class OfFirstRank:
    """A function whose results on other ranks than 0 are not sent, and need not be picklable."""

    def __init__(self, main: Callable[..., Any]) -> None:
        self._main = main

    def __call__(self, **kwargs: Any) -> Any:
        value = self._main(**kwargs)
        return value if os.environ["HOROVOD_RANK"] == "0" else None


def run_main(num_proc: int, verbosity: str, main: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    """What `main(**kwargs)` returns on rank 0. `num_proc`: as for HorovodRunner.

    Raises RuntimeError with the traceback of the rank that failed first; NotEnoughSlots, a RuntimeError too.
    """
    call = checked("HorovodRunner.run", main, (), kwargs)
    function = pickled("HorovodRunner.run", *call, sent=OfFirstRank(main))
    if num_proc < 0:
        return _run_here(-num_proc, function)
    context = active_context(f"HorovodRunner(np={num_proc})", make=True)
    if num_proc == 0:
        warnings.warn(
            "HorovodRunner(np=0), which takes all slots of the cluster, is deprecated: give the number of processes",
            DeprecationWarning,
            stacklevel=4,
        )
    seconds = start_seconds(None, _SLOTS_S)
    output = DriverOutput(num_proc) if verbosity == "all" else None
    options = Options(num_proc or None, seconds, None, driver_variables(None), None, output)
    return run_barrier_job(context, function, options)[0]


def _run_here(num_proc: int, function: bytes) -> Any:
    secret, host = secrets.token_bytes(32), socket.gethostname()
    memory = FunctionMemory(range(num_proc))
    try:
        write_all(memory.function, function)
        with StoreServer("127.0.0.1", secret) as server:
            env = base_environment(os.environ, store_environment(server.address, secret))
            specs = []
            for place in assign([TaskFacts(host, "")] * num_proc):
                own = place.variables()
                specs.append(RankSpec(place.slot.rank, rank_command(None), own, memory, DESCRIPTOR))
            ends = EndedRanks(server.address, secret)
            outcome = RankJob([LocalRanks(specs, env)], DriverOutput(num_proc), ends).run()
        results = [read_all(memory.results[rank]) or None for rank in range(num_proc)]
    finally:
        memory.close()
    failure = rank_failure(outcome, results)
    if failure is not None:
        error = failure.exception(host, sys.executable)
        raise error from error.__cause__
    if outcome.problem is not None:
        raise RuntimeError(outcome.problem.removeprefix("horovodrun: ").strip())
    return pickle.loads(results[0] or b"")[1]
