"""HorovodRunner, which runs a Horovod function as a Spark job. See docs/spark.md of hvd-core."""

from sparkdl.horovod_runner import HorovodRunner

__all__ = ["HorovodRunner"]
