"""What the driver asks Spark: its context, the number of slots, whether barrier stages can run at all."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from hvd_core._config.settings import encryption_wanted

_LOOK_S = 0.2
# The number of slots counts as final when it has not changed for this time.
_SETTLED_S = 3.0


class NotEnoughSlots(RuntimeError):
    """The cluster cannot run so many tasks at a time."""


def active_context(caller: str, make: bool = False) -> Any:
    """The SparkContext of this process. `make`: start a session with the default settings if this process has no session.

    Raises ImportError without PySpark, RuntimeError without a SparkContext.
    """
    try:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ImportError(
            f"{caller} needs PySpark, which cannot be imported here ({error}): pip install 'pyspark>=3.5'"
        ) from error
    context = SparkContext._active_spark_context
    if context is not None:
        return context
    try:
        connected = SparkSession.getActiveSession()
    except Exception:
        connected = None
    if connected is not None and not hasattr(connected, "_jsc"):
        raise RuntimeError(
            f"{caller} starts a barrier stage, which Spark Connect does not offer. Run the driver in the cluster "
            "(a classic session: SparkSession.builder.master(...))."
        )
    if make:
        return SparkSession.builder.getOrCreate().sparkContext
    raise RuntimeError(
        f"{caller} found no active SparkContext in this process. Create a SparkSession first: "
        "SparkSession.builder.getOrCreate()"
    )


def has_dynamic_allocation(context: Any) -> bool:
    """Whether Spark starts and ends executors as jobs need them."""
    settings = context._jsc.sc().conf()
    on = settings.getBoolean("spark.dynamicAllocation.enabled", False)
    return on and not context.master.startswith("local[")


def check_barrier(context: Any) -> None:
    """Raises RuntimeError if Spark refuses barrier stages because of its settings."""
    if has_dynamic_allocation(context):
        raise RuntimeError(
            "Spark runs no barrier stage while spark.dynamicAllocation.enabled is true, and the ranks of a job are tasks "
            "of one. Start the session with spark.dynamicAllocation.enabled=false and a fixed spark.executor.instances."
        )


def check_encryption(context: Any, variables: Mapping[str, str]) -> None:
    """Raises RuntimeError if the job's secret, which Spark sends to the executors, would travel in the clear although
    HOROVOD_TLS asks for encryption. `variables`: of the ranks. Raises ValueError for a value that is neither yes nor no.
    """
    settings = context.getConf()

    def on(name: str) -> bool:
        return (settings.get(name) or "").strip().lower() == "true"

    executors = settings.get("spark.executorEnv.HOROVOD_TLS")
    asked = encryption_wanted(variables) or (
        executors is not None and encryption_wanted({"HOROVOD_TLS": executors})
    )
    if not asked or context.master.startswith(("local[", "local-cluster[")) or context.master == "local":
        return
    if (on("spark.authenticate") and on("spark.network.crypto.enabled")) or on("spark.ssl.rpc.enabled"):
        return
    raise RuntimeError(
        "HOROVOD_TLS=1: Spark would send the job's secret to the executors in the clear. Start the session with Spark's "
        "own encryption: spark.authenticate=true and spark.network.crypto.enabled=true, or (Spark 4) "
        "spark.ssl.rpc.enabled=true; or take HOROVOD_TLS away."
    )


def slots(context: Any) -> int:
    """How many tasks the cluster can run at a time, busy slots included. 0 until executors have registered."""
    scala = context._jsc.sc()
    # The only way to ask: without it, a stage with too many tasks fails after ten minutes.
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


def wait_for_slots(context: Any, wanted: int | None, seconds: float) -> int:
    """The number of slots, after waiting up to `seconds` until it is `wanted`; None: until it is not 0 and grows no more.

    Sessions return before their executors have registered. Raises NotEnoughSlots.
    """
    start = last_growth = time.monotonic()
    found = 0
    while True:
        before, found, now = found, slots(context), time.monotonic()
        if found != before:
            last_growth = now
        if found >= wanted if wanted is not None else found and now - last_growth >= _SETTLED_S:
            return found
        if now - start >= seconds:
            break
        time.sleep(_LOOK_S)
    if wanted is None and found:
        return found
    raise NotEnoughSlots(
        f"{wanted or 1} processes were asked for, and the cluster {context.master} can run {found} tasks at a time "
        f"(looked at for {seconds:g} s). Give it more executors or cores (spark.executor.instances, "
        "spark.executor.cores; a task may need several: spark.task.cpus, spark.task.resource.gpu.amount), or ask for "
        "fewer processes. If executors need more time to register, set HOROVOD_SPARK_START_TIMEOUT, in seconds."
    )


def driver_host(context: Any) -> tuple[str, str]:
    """(the address to listen on, the name under which executors reach it)."""
    settings = context.getConf()
    name = settings.get("spark.driver.host") or "127.0.0.1"
    return settings.get("spark.driver.bindAddress") or name, name
