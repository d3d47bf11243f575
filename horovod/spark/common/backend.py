"""How an estimator starts its ranks. Programs may give an object of their own with the same two methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class Backend:
    """Runs a function on the ranks of a job."""

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """What `fn(*args, **kwargs)` returns on each rank, in rank order."""
        raise NotImplementedError

    def num_processes(self) -> int:
        """The number of ranks."""
        raise NotImplementedError


def default_num_proc() -> int:
    """The default parallelism of the active SparkContext. Raises RuntimeError without one."""
    from horovod.spark._cluster import active_context

    return int(active_context("an estimator of horovod.spark").defaultParallelism)


class SparkBackend(Backend):
    """horovod.spark.run(). `num_proc`: default default_num_proc(); `env`: variables of the ranks; further arguments are
    those of horovod.spark.run()."""

    def __init__(
        self, num_proc: int | None = None, env: Mapping[str, str] | None = None, **kwargs: Any
    ) -> None:
        self._num_proc = num_proc or default_num_proc()
        self._env = dict(env or {})
        self._options = kwargs

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """As Backend.run(). Raises the exceptions of horovod.spark.run()."""
        from horovod import spark

        variables = {**self._env, **(env or {})}
        return spark.run(fn, args, kwargs, num_proc=self._num_proc, env=variables, **self._options)

    def num_processes(self) -> int:
        return self._num_proc
