"""The device of test_tf_device_*.py, TensorFlow's `GCU`: the simulated device of tests/simulators/tf_gcu, whose
streams are late. A rank has the vendor's device with its number. `make test` installs the device and the backend.

Tests have one of the marks pytest.mark.ranks(2, **NATIVE) and so on. Each service of the device needs processes of its
own, as TensorFlow takes one set of kernels for a device.
"""

import contextlib
import functools
import os
import tempfile

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd
from harness.installed import need

need("tf_gcu", "hvd_backend_eccl_stub")
import tf_gcu  # noqa: E402

DEVICE = "/device:GCU:0"
NEXT_DEVICE = "/device:GCU:1"
# The vendor's number of DEVICE. On all ranks but the first it differs from TensorFlow's number.
ORDINAL = int(os.environ.get("HOROVOD_LOCAL_RANK", "0"))

# Long enough that an operation that does not wait reads old values; short enough for thousands of operations.
_LATE = {"TOPS_SIM_DELAY_US": "50", "TF_GCU_JITTER_US": "200"}
# init() of this module loads the device.
_HERE = {"framework": "tensorflow", "init": "tf_device_under_test"}
# The backend works on the device's memory.
NATIVE = {
    **_HERE,
    "id": "native",
    "process_env": {**_LATE, "HOROVOD_BACKEND": "eccl_stub"},
    "env": {"HVD_TEST_SERVED": "NATIVE"},
}
# A new engine in the same processes: the backend's table opens the device, and the operations are those of another
# backend, for host memory.
STAGED = {
    **NATIVE,
    "id": "staged",
    "init_options": {"backend": "gcu=shm"},
    "env": {"HVD_TEST_SERVED": "STAGED"},
}
# No backend serves the device: TensorFlow copies.
HOST = {
    **_HERE,
    "id": "host",
    "process_env": {**_LATE, "HOROVOD_BACKEND": "shm"},
    "env": {"HVD_TEST_SERVED": "HOST"},
}


def init(**options):
    """What begins a job of these tests, in place of hvd.init()."""
    _load()
    hvd.init(**options)


@functools.cache
def _load():
    """Loads the device into this process, which has not used a device of TensorFlow before."""
    tf_gcu.load()
    tf.config.set_visible_devices(
        tf.config.list_physical_devices(tf_gcu.DEVICE)[ORDINAL : ORDINAL + 2], tf_gcu.DEVICE
    )


def served():
    """How the device is served in this job: NATIVE, STAGED by the engine, or HOST, by TensorFlow."""
    return os.environ["HVD_TEST_SERVED"]


@contextlib.contextmanager
def reports_of_copies():
    """A list that has, after the block, the lines by which this process says that TensorFlow copies."""
    found = []
    with tempfile.TemporaryFile("w+") as file:
        own = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield found
        finally:
            os.dup2(own, 2)
            os.close(own)
            file.seek(0)
            text = file.read()
            os.write(2, text.encode())
    found += [
        line for line in text.splitlines() if "no backend works on memory of TensorFlow's GCU devices" in line
    ]
    assert text.count("fix: install the backend wheel of the device's vendor") == len(found), text


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
