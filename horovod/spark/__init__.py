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
    """Calls `fn(*args, **kwargs)` on `num_proc` ranks in the executors of the active SparkContext.

    The ranks are separate processes, children of the tasks of one barrier stage. Each calls `hvd.init()` itself. `fn`,
    its arguments and its results are pickled by cloudpickle.

    Args:
        fn: the function of the ranks.
        args, kwargs: its arguments.
        num_proc: number of ranks; default `SparkContext.defaultParallelism`.
        start_timeout: seconds for enough executors to register, and then for enough slots to be free (default
            HOROVOD_SPARK_START_TIMEOUT, 600).
        use_mpi: must be false: Spark starts the ranks.
        env: variables of the ranks, besides those of the executors and this process's HOROVOD_* and NCCL_*.
        stdout, stderr: objects with write() and flush() that get the ranks' output (default: this process's).
        nics: network interfaces.
        prefix_output_with_timestamp: the time begins each line of output.
        executable: the ranks' Python (default: that of the executors).
        use_gloo, extra_mpi_args, verbose: no effect.

    Returns:
        The results in rank order.

    Raises:
        RuntimeError: there is no SparkContext, the cluster has too few slots, or a rank fails: then with its rank, host
            and traceback, and its exception as `__cause__`.
        TimeoutError: no slots become free.
        ValueError: `use_mpi` is true, or a number makes no sense.

    Example:
        >>> results = horovod.spark.run(train, args=(0.01,), num_proc=4)  # one value per rank
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
    """Calls `fn(*args, **kwargs)` on ranks in the executors that die, come and go.

    `fn` calls `hvd.init()` and a function of `hvd.elastic.run` (docs/elastic.md). Each of `max_num_proc` Spark tasks has
    a slot for one rank. If a rank dies or an executor is lost, the others continue from the last commit; Spark starts
    another task for one that was lost, and the rank in it joins.

    Args:
        fn, args, kwargs, start_timeout, env, stdout, stderr, nics, prefix_output_with_timestamp: as for run().
        num_proc: the slots with which the job begins (default `min_num_proc`, else `SparkContext.defaultParallelism`).
        min_num_proc, max_num_proc: the fewest and the most ranks (default `num_proc`).
        elastic_timeout: seconds to wait for enough slots after a loss (default HOROVOD_ELASTIC_TIMEOUT, 600).
        reset_limit: the most restarts because of failures.
        verbose: more than 1 reports the slots and the worlds.
        min_np, max_np: deprecated names of `min_num_proc` and `max_num_proc`.

    Returns:
        The results of the last ranks.

    Raises:
        RuntimeError: the function raises an error that is not elastic's, with the process, host and traceback; too few
            slots are left; or there were too many restarts.
        ValueError: a number makes no sense.

    Example:
        >>> results = horovod.spark.run_elastic(train, num_proc=4, min_num_proc=2, max_num_proc=8)
    """
    arguments = dict(locals())
    from horovod.spark import _elastic_job

    return _elastic_job.run_elastic(arguments)
