"""A device that no backend serves, in a job where a setting names a backend for devices: TensorFlow must not copy its
tensors."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from hvd_core._runtime import current_job
from tf_device_under_test import DEVICE, HOST, reports_of_copies
from tf_support import raises

NAMED = "HOROVOD_GPU_OPERATIONS names the backend 'nccl' for devices"


# In processes that have not used the device with Horovod before.
@pytest.mark.ranks(2, **HOST, fresh=True)
def test_a_backend_that_is_named_for_devices_is_not_replaced():
    # As a plan says it where the variable is set and the backend that opens this device is not installed. Here it is.
    job = current_job.get()
    job.backends.plan = dataclasses.replace(job.plan, named_for_devices=NAMED)

    def on_device(name):
        with tf.device(DEVICE):
            return hvd.allreduce(tf.ones(3), op=hvd.Sum, name=name)

    text = f"(?s)no backend serves tensors on device type 'gcu'.*{NAMED}.*unset"
    for way in (on_device, tf.function(on_device)):
        raises(tf.errors.InvalidArgumentError, text, lambda way=way: way("refused"))
    # Host memory is not concerned, and its ranks hear of the refusal on the other ranks.
    if hvd.rank() == 0:
        raises(tf.errors.InvalidArgumentError, text, lambda: on_device("one"))
    else:
        with tf.device("/device:CPU:0"):
            raises(
                tf.errors.InvalidArgumentError,
                f"(?s)rank 0.*{NAMED}",
                lambda: hvd.allreduce(tf.ones(3), op=hvd.Sum, name="one"),
            )
    with tf.device("/device:CPU:0"):
        total = hvd.allreduce(tf.ones(3), op=hvd.Sum, name="host")
    assert np.array_equal(total.numpy(), [hvd.size()] * 3)
    # The refusal ends with its job.
    hvd.shutdown()
    hvd.init()
    with reports_of_copies() as reports:
        assert np.array_equal(on_device("the next job").numpy(), [hvd.size()] * 3)
    assert len(reports) == (hvd.rank() == 0), reports
