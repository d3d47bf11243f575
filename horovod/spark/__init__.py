"""Horovod on Spark: `horovod.spark.run(fn, num_proc=2)` calls a function on ranks that are the tasks of a barrier stage.

This file has the signatures only: importing it needs neither PySpark nor a framework. Executors need hvd-core and
cloudpickle; see docs/spark.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["run", "run_elastic"]


def run(
    fn: Callable[..., Any],
    args: tuple = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    nics: Iterable[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
) -> list[Any]:
    """Calls `fn(*args, **kwargs)` on `num_proc` ranks in the executors of the active SparkContext; returns the results in
    rank order.

    The ranks are processes of their own, children of the tasks of one barrier stage. Each calls `hvd.init()` itself.
    `fn`, its arguments and its results are pickled by cloudpickle.

    Parameters: `num_proc`: default `SparkContext.defaultParallelism`. `start_timeout`: seconds for enough executors to
    register, and then for enough slots to be free (default HOROVOD_SPARK_START_TIMEOUT, 600). `env`: variables of the
    ranks, besides those of the executors and this process's HOROVOD_* and NCCL_*. `stdout`, `stderr`: objects with
    write() and flush() that get the ranks' output (default: this process's). `nics`: interfaces. `executable`: the ranks'
    Python (default: that of the executors). `extra_mpi_args`, `use_gloo` and `verbose` have no effect.

    Raises RuntimeError if there is no SparkContext, if the cluster has too few slots, or if a rank fails: then with its
    rank, host and traceback, and its exception as `__cause__`. TimeoutError if no slots become free; ValueError for
    `use_mpi` and wrong numbers.
    """
    arguments = dict(locals())
    from horovod.spark import runner

    return runner.run_from_arguments(arguments)


def run_elastic(
    fn: Callable[..., Any],
    args: tuple = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    start_timeout: float | None = None,
    elastic_timeout: float | None = None,
    reset_limit: int | None = None,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    nics: Iterable[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Raises NotImplementedError: elastic jobs on Spark are not there yet, as a barrier stage ends with its first task.

    Call run(), and begin again from the last checkpoint after a failure; or start the job with `horovodrun --min-np`.
    """
    raise NotImplementedError(
        "horovod.spark.run_elastic() is not there yet: the tasks of a Spark barrier stage end together when one is lost. "
        "Call horovod.spark.run(), and begin again from the last checkpoint after a failure; or start an elastic job on "
        "the hosts with horovodrun --min-np."
    )
