"""Process sets in layers and functions. Those of tapes and optimizers are tested with these."""

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from tf_support import data, job_with, near, raises

pytestmark = pytest.mark.ranks(3, framework="tensorflow")


def test_sync_batch_norm():
    unknown = hvd.SyncBatchNormalization(process_set=hvd.ProcessSet([0, 1]))
    raises(ValueError, "not been registered", lambda: unknown(tf.ones([2, 3]), training=True))
    some = hvd.ProcessSet([0, 1])
    with job_with(some):
        layer = hvd.SyncBatchNormalization(momentum=0.0, process_set=some)
        batches = [data(r, 5, 3) for r in range(hvd.size())]
        layer(tf.constant(batches[hvd.rank()], tf.float32), training=True)
        near(layer.moving_mean, np.concatenate(batches[:2] if hvd.rank() < 2 else batches[2:]).mean(0), 1e-4)


def test_functions():
    some = hvd.ProcessSet([0, 2])
    with job_with(some):
        made = tf.Variable(float(hvd.rank()))
        if some.included():
            hvd.broadcast_variables([made], root_rank=2, process_set=some)
            assert made.numpy() == 2
            assert hvd.broadcast_object(hvd.rank(), 2, process_set=some) == 2
            assert hvd.allgather_object(hvd.rank(), process_set=some) == [0, 2]
        assert hvd.allgather_object(made.numpy().item()) == [2.0, 1.0, 2.0]
