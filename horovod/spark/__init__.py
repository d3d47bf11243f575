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
    args: tuple[Any, ...] = (),
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
    from horovod.spark import _barrier_job

    return _barrier_job.run_barrier(arguments)


def run_elastic(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
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
    """Calls `fn(*args, **kwargs)` on ranks in the executors that die, come and go; returns the results of the last ranks.

    `fn` calls `hvd.init()` and a function of `hvd.elastic.run` (docs/elastic.md). Each of `max_num_proc` Spark tasks has
    a slot for one rank. If a rank dies or an executor is lost, the others continue from the last commit; Spark starts
    another task for one that was lost, and the rank in it joins.

    Parameters: as for run(), and `num_proc`: the slots with which the job begins (default `min_num_proc`, else
    `SparkContext.defaultParallelism`). `min_num_proc`, `max_num_proc`: the fewest and the most ranks (default
    `num_proc`). `elastic_timeout`: seconds to wait for enough slots after a loss (default HOROVOD_ELASTIC_TIMEOUT, 600).
    `reset_limit`: the most restarts because of failures. `verbose`: more than 1 reports the slots and the worlds.

    Raises RuntimeError if the function raises a mistake of its own, with the process, host and traceback; if too few
    slots are left; or after too many restarts. ValueError for wrong numbers.
    """
    arguments = dict(locals())
    from horovod.spark import _elastic_job

    return _elastic_job.run_elastic(arguments)
