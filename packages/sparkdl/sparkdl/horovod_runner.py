"""The class HorovodRunner with the signatures that Databricks documents; horovod.spark does the work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from horovod.spark import horovod_runner


class HorovodRunner:
    """Runs a function on the ranks of one job, and returns its value on rank 0.

    Args:
        np: how many processes. Negative: -np processes on the driver's machine, without Spark; their output is shown.
            Positive: as many tasks of one barrier stage, started together when as many slots are free. 0, deprecated: as
            many as the cluster has slots.
        driver_log_verbosity: "all" shows the output of the ranks here; "log_callback_only" only the texts of
            log_to_driver() and LogCallback. The executors' logs have the whole output either way.

    Raises TypeError or ValueError for other values.
    """

    def __init__(self, *, np: int, driver_log_verbosity: str = "log_callback_only") -> None:
        if isinstance(np, bool) or not isinstance(np, int):
            raise TypeError(f"HorovodRunner(np={np!r}): np is a whole number of processes")
        if driver_log_verbosity not in horovod_runner.VERBOSITIES:
            known = " or ".join(map(repr, horovod_runner.VERBOSITIES))
            raise ValueError(f"driver_log_verbosity={driver_log_verbosity!r}: give {known}")
        self.num_processor = np
        self.driver_log_verbosity = driver_log_verbosity

    def run(self, main: Callable[..., Any], **kwargs: Any) -> Any:
        """What `main(**kwargs)` returns on rank 0. `main` calls `hvd.init()`, and imports what it needs inside.

        Raises RuntimeError: with the traceback of the rank that failed first, whose exception is `__cause__`; or if the
        cluster has too few slots.
        """
        return horovod_runner.run_main(self.num_processor, self.driver_log_verbosity, main, kwargs)
