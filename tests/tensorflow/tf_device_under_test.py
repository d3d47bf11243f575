"""The device of the checks in ranks_tf_device_*.py: TensorFlow's `GCU`, the vendor's device with this rank's number.
Import it before TensorFlow uses a device."""

import os

import numpy as np
import tensorflow as tf

import tf_gcu

DEVICE = "/device:GCU:0"
NEXT_DEVICE = "/device:GCU:1"
# The vendor's number of DEVICE. On all ranks but the first it differs from TensorFlow's number.
ORDINAL = int(os.environ.get("HOROVOD_LOCAL_RANK", "0"))

tf_gcu.load()
tf.config.set_visible_devices(
    tf.config.list_physical_devices(tf_gcu.DEVICE)[ORDINAL : ORDINAL + 2], tf_gcu.DEVICE
)


def on_device(values, dtype=None, where=DEVICE):
    """A tensor on the device with these values (anything that NumPy or TensorFlow converts)."""
    with tf.device(where):
        return tf.identity(tf.constant(values, dtype))


def data(rank, shape, dtype, seed=0):
    """The contribution of `rank`: small integers, so that sums and products are exact in each dtype."""
    values = (np.arange(np.prod(shape, dtype=np.int64)) * 7 + rank * 3 + seed) % 5 + 1
    if tf.as_dtype(dtype) == tf.bool:
        values = values % 2
    return values.reshape(shape).astype(tf.as_dtype(dtype).as_numpy_dtype)


def same(tensor, wanted, what=""):
    """Raise AssertionError unless `tensor` is on the device and has exactly the wanted values."""
    assert tensor.device.endswith(DEVICE), f"{what}: on {tensor.device}"
    found = tensor.numpy().astype(np.float64)
    np.testing.assert_array_equal(found, np.asarray(wanted, np.float64), err_msg=str(what))
