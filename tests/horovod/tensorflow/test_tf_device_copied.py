"""A device that no backend serves, whose tensors TensorFlow copies: ranks that copy, and ranks that do not, are told of
each other."""

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from tf_device_under_test import DEVICE, HOST
from tf_support import raises

pytestmark = pytest.mark.ranks(2, **HOST)


def test_ranks_with_and_without_the_device():
    where = DEVICE if hvd.rank() == 0 else "/device:CPU:0"
    ones = np.ones((hvd.size(), 2), np.float32)
    calls = (
        lambda t: hvd.allreduce(t, name="where"),
        lambda t: hvd.grouped_allreduce([t, t], name="where"),
        lambda t: hvd.allgather(t, name="where"),
        lambda t: hvd.broadcast(t, 0, name="where"),
        lambda t: hvd.alltoall(t, name="where"),
        lambda t: hvd.reducescatter(t, name="where"),
    )
    text = r"(?s)rank 0: .*on staged gcu.*on cpu"
    for call in calls:
        for way in (call, tf.function(call)):
            with tf.device(where):
                raises(tf.errors.FailedPreconditionError, text, lambda way=way: way(tf.constant(ones)))
    with tf.device(DEVICE):
        total = hvd.allreduce(tf.constant(ones), op=hvd.Sum, name="together")
    assert total.numpy().tolist() == (ones * hvd.size()).tolist()
