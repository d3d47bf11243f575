"""TorchEstimator: trains a PyTorch model on the rows of a Spark frame.

The two classes need PySpark; the ranks import only trainer.py, which does not.
"""

from typing import Any

__all__ = ["TorchEstimator", "TorchModel"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from horovod.spark.torch import estimator

        return getattr(estimator, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
