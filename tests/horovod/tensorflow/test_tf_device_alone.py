"""TensorFlow's device `GCU` itself (tests/simulators/tf_gcu). The tests of horovod.tensorflow on it rely on
its properties: its streams are really late, and its copies are counted."""

import ctypes

import numpy as np
import pytest
import tensorflow as tf

from tf_device_under_test import DEVICE, NATIVE, ORDINAL, on_device, tf_gcu

pytestmark = pytest.mark.ranks(2, **NATIVE)

TYPES = [
    "uint8",
    "int8",
    "uint16",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "bool",
]


def test_the_device_is_there():
    assert len(tf.config.list_physical_devices(tf_gcu.DEVICE)) == 8
    assert len(tf.config.list_logical_devices(tf_gcu.DEVICE)) == 2
    tf_gcu.load()  # a second call has no effect


def test_a_process_that_has_used_its_devices_is_refused():
    on_device(1.0)
    loaded, tf_gcu._extension = tf_gcu._extension, None
    try:
        tf_gcu.load()
    except RuntimeError as error:
        assert "has used its devices already" in str(error)
    else:
        raise AssertionError("loaded")
    finally:
        tf_gcu._extension = loaded


def test_memory_is_the_vendors():
    vendor = ctypes.CDLL(str(tf_gcu.vendor_library()))
    free, total = ctypes.c_size_t(), ctypes.c_size_t()

    def used(device):
        assert vendor.topsSetDevice(device) == 0
        assert vendor.topsMemGetInfo(ctypes.byref(free), ctypes.byref(total)) == 0
        return total.value - free.value

    before, elsewhere = used(ORDINAL), used(ORDINAL + 2)
    tensor = on_device(np.zeros(8 << 20, np.float32))  # more than TensorFlow keeps in its pool
    assert tensor.device.endswith(DEVICE) and used(ORDINAL) - before >= 32 << 20
    assert used(ORDINAL + 2) == elsewhere


def test_copies_keep_every_type():
    for name in TYPES:
        for shape in [(), (0,), (3, 5)]:
            values = (np.arange(np.prod(shape), dtype=np.int64).reshape(shape) * 3 % 7).astype(
                tf.as_dtype(name).as_numpy_dtype
            )
            tensor = on_device(values)
            assert tensor.device.endswith(DEVICE) and tensor.dtype == name
            np.testing.assert_array_equal(tensor.numpy(), values)


def test_copies_are_counted():
    tensor = on_device(np.ones(1000, np.float32))
    tensor.numpy()
    before = tf_gcu.traffic()
    with tf.device(DEVICE):
        total = tensor + tensor
    assert tf_gcu.traffic() == before, "arithmetic copies nothing"
    total.numpy()
    after = tf_gcu.traffic()
    assert after.to_host - before.to_host == 1 and after.to_host_bytes - before.to_host_bytes == 4000
    assert after.to_device == before.to_device


def test_arithmetic():
    random = np.random.default_rng(3)
    for dtype in (np.float32, np.float64):
        a, b = random.standard_normal((2, 5, 5)).astype(dtype)
        x, y = on_device(a), on_device(b)
        with tf.device(DEVICE):
            found = [x + y, x - y, x * y, x * on_device(dtype(2.5)), on_device(dtype(1.5)) - y]
            products = [
                tf.matmul(x, y, transpose_a=i, transpose_b=j) for i in (False, True) for j in (False, True)
            ]
        wanted = [a + b, a - b, a * b, a * dtype(2.5), dtype(1.5) - b]
        for tensor, values in zip(found, wanted):
            assert tensor.device.endswith(DEVICE)
            np.testing.assert_array_equal(tensor.numpy(), values)
        for tensor, values in zip(products, [a @ b, a @ b.T, a.T @ b, a.T @ b.T]):
            np.testing.assert_allclose(tensor.numpy(), values, rtol=1e-5, atol=1e-5)
    empty = on_device(np.zeros((0, 3), np.float32))
    assert (empty + empty).shape == (0, 3)
    try:
        on_device(np.ones((2, 3), np.float32)) + on_device(np.ones(3, np.float32))
    except tf.errors.InvalidArgumentError as error:
        assert "equal shapes" in str(error)
    else:
        raise AssertionError("shapes that the kernels do not know were taken")


def test_nobody_waits_for_a_kernel():
    tensor, one = on_device(np.zeros(1000, np.float32)), on_device(np.float32(1))
    with tf.device(DEVICE):
        with tf_gcu.held():
            for _ in range(50):
                tensor = tensor + one
            assert tf_gcu.queued_kernels() == 50
        assert (tensor.numpy() == 50).all() and tf_gcu.queued_kernels() == 0


def test_functions_and_variables():
    with tf.device(DEVICE):
        variable = tf.Variable(np.ones(10, np.float32))

    @tf.function
    def step(x):
        with tf.device(DEVICE):
            variable.assign(variable.read_value() * x + x)
            return variable.read_value() - x

    assert variable.device.endswith(DEVICE)
    wanted = 1.0
    for i in range(20):
        result = step(on_device(np.float32(i % 3)))
        wanted = wanted * (i % 3) + i % 3
        assert (result.numpy() == np.float32(wanted - i % 3)).all()
    assert (variable.numpy() == np.float32(wanted)).all()


def test_graphs_and_sessions():
    with tf.Graph().as_default(), tf.device(DEVICE):
        fed = tf.compat.v1.placeholder(tf.float32, [4])
        result = tf.identity(fed) * tf.identity(fed)
        with tf.compat.v1.Session() as session:
            for i in range(5):
                assert (session.run(result, {fed: np.full(4, i, np.float32)}) == i * i).all()
