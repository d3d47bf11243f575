"""Implements horovod.spark.run: the arguments of the original, as options of a barrier job."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from typing import Any

from horovod._runner.functions import checked, pickled
from horovod._runner.output import Output, Sink
from horovod.spark.barrier_job import Options, driver_variables, run_barrier_job
from horovod.spark.cluster import active_context
from hvd_core._config.environment import positive_seconds, seconds_of

_START_S = 600


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


def start_seconds(given: float | None, default: float = _START_S) -> float:
    """The time for executors to register. Raises ValueError for a wrong number."""
    if given is not None:
        return positive_seconds(str(given), "start_timeout")
    return seconds_of(os.environ, "HOROVOD_SPARK_START_TIMEOUT", default)


def interface_variables(nics: Iterable[str] | None) -> dict[str, str]:
    """The ranks' variables for the network interfaces that were named."""
    names = sorted([nics] if isinstance(nics, str) else nics or ())
    return {"HOROVOD_GLOO_IFACE": names[0], "NCCL_SOCKET_IFNAME": ",".join(names)} if names else {}


def run_from_arguments(given: dict[str, Any]) -> list[Any]:
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
