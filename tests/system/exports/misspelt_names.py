"""Misspelt names of the public modules, each of which must be an error for type checkers. Never run.

`make lint` checks it with mypy, which also reports a `type: ignore` that hides no error.
"""

import horovod.jax
import horovod.keras
import horovod.mxnet
import horovod.tensorflow
import horovod.tensorflow.keras
import horovod.torch
import hvd_core

hvd_core.allredcue(1)  # type: ignore[attr-defined]
horovod.jax.allredcue(1)  # type: ignore[attr-defined]
horovod.keras.allredcue(1)  # type: ignore[attr-defined]
horovod.mxnet.allredcue(1)  # type: ignore[attr-defined]
horovod.tensorflow.allredcue(1)  # type: ignore[attr-defined]
horovod.tensorflow.keras.allredcue(1)  # type: ignore[attr-defined]
horovod.torch.allredcue(1)  # type: ignore[attr-defined]
horovod.keras.DistributedOptimiser(None)  # type: ignore[attr-defined]
horovod.keras.DistributedOptimizer(None, comprssion=None)  # type: ignore[call-arg]
horovod.keras.callbacks.MetricAverageCalback()  # type: ignore[attr-defined]
