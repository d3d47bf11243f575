"""SyncBatchNormalization. The reference is one process with all batches."""

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from harness.rank import needs
from tf_support import data, graph_function, keras_3, near, raises

pytestmark = pytest.mark.ranks(2, framework="tensorflow")

SHAPES = {"dense": (5, 3), "image": (2, 4, 3, 5), "sequence": (3, 4, 2)}


def plain_layer(**options):
    if not keras_3():
        options["fused"] = False
    return tf.keras.layers.BatchNormalization(momentum=0.7, **options)


def step_of(layer, inputs, weights):
    """A function of no arguments that returns the output in training and the gradient of a weighted sum of it."""

    def step():
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs, training=True)
            loss = tf.reduce_sum(tf.cast(outputs, weights.dtype) ** 2 * weights)
        return outputs, *tape.gradient(
            loss, [inputs, *[getattr(v, "_value", v) for v in layer.trainable_weights]]
        )

    return step


def compare(batches, weights, dtype, tolerance, function=False, jit=False, **options):
    everything = tf.constant(np.concatenate(batches), dtype)
    factors = tf.constant(np.concatenate(weights), tf.float32 if dtype != tf.float64 else dtype)
    wanted_layer, layer = (
        plain_layer(dtype=dtype, **options),
        hvd.SyncBatchNormalization(momentum=0.7, dtype=dtype, **options),
    )
    for each in (wanted_layer, layer):
        each.build((None, *batches[0].shape[1:]))
    whole = step_of(wanted_layer, everything, factors)
    step = step_of(
        layer, tf.constant(batches[hvd.rank()], dtype), tf.constant(weights[hvd.rank()], factors.dtype)
    )
    if function:
        step = graph_function(step, jit_compile=jit or None)
    for _ in range(2):
        wanted, found = whole(), step()
    start = sum(len(b) for b in batches[: hvd.rank()])
    rows = slice(start, start + len(batches[hvd.rank()]))
    near(found[0], wanted[0][rows], tolerance)
    near(found[1], wanted[1][rows], tolerance)
    for part, whole in zip(found[2:], wanted[2:]):
        near(hvd.allreduce(part, op=hvd.Sum), whole, tolerance)
    near(layer.moving_mean, wanted_layer.moving_mean, tolerance)
    near(layer.moving_variance, wanted_layer.moving_variance, tolerance)


def batches_of(shape, offset=0.0, rows=None):
    return [
        data(r, *(shape if rows is None else (rows[r], *shape[1:])), seed=7) * (r + 1) + offset
        for r in range(hvd.size())
    ]


def weights_of(batches):
    return [data(20 + r, *b.shape, seed=8) for r, b in enumerate(batches)]


def test_equals_one_process_with_the_whole_batch():
    for kind, shape in SHAPES.items():
        batches = batches_of(shape)
        compare(batches, weights_of(batches), tf.float32, 1e-4, function=kind == "image")


def test_other_axes_and_options():
    batches = batches_of(SHAPES["image"])
    compare(batches, weights_of(batches), tf.float32, 1e-4, axis=1)
    compare(batches, weights_of(batches), tf.float32, 1e-4, center=False, scale=False)


def test_float64():
    batches = batches_of(SHAPES["dense"])
    compare(batches, weights_of(batches), tf.float64, 1e-10)


def test_far_from_zero():
    """Data for which the mean of squares minus the square of the mean has no correct digits in float32."""
    batches = batches_of((64, 3), offset=3000.0)
    everything = np.concatenate(batches)
    layer = hvd.SyncBatchNormalization(momentum=0.0)
    layer(tf.constant(batches[hvd.rank()], tf.float32), training=True)
    near(layer.moving_variance, everything.var(axis=0), 2e-3)


def test_batches_of_different_length():
    batches = batches_of((4, 3), rows=[4 + 3 * r for r in range(hvd.size())])
    compare(batches, weights_of(batches), tf.float32, 1e-4)
    batches = batches_of((4, 3), rows=[0 if r == 0 else 5 for r in range(hvd.size())])
    compare(batches, weights_of(batches), tf.float32, 1e-4)


def test_mixed_precision():
    layer = hvd.SyncBatchNormalization(momentum=0.0, dtype="mixed_float16")
    batches = batches_of(SHAPES["dense"])
    outputs = layer(tf.constant(batches[hvd.rank()], tf.float16), training=True)
    assert outputs.dtype == tf.float16
    everything = np.concatenate(batches)
    wanted = (batches[hvd.rank()] - everything.mean(0)) / np.sqrt(everything.var(0) + 1e-3)
    near(outputs, wanted, 1e-2)


def test_compiled_by_xla():
    batches = batches_of(SHAPES["dense"])
    compare(batches, weights_of(batches), tf.float32, 1e-4, function=True, jit=True)


@needs(keras_3, "this layer of Keras 2 takes no mask")
def test_masks():
    batches = batches_of((4, 6, 3))
    masks = [np.arange(6)[None, :] < np.array([6, 2, r + 1, 3])[:, None] for r in range(hvd.size())]
    layer = hvd.SyncBatchNormalization(momentum=0.0)
    layer(tf.constant(batches[hvd.rank()], tf.float32), training=True, mask=tf.constant(masks[hvd.rank()]))
    counted = np.concatenate([b[m] for b, m in zip(batches, masks)])
    near(layer.moving_mean, counted.mean(0), 1e-4)
    near(layer.moving_variance, counted.var(0), 1e-4)


def test_inference_sends_nothing():
    layer = hvd.SyncBatchNormalization()
    layer.build((None, 3))
    if hvd.rank() == 0:  # alone
        near(layer(tf.ones([2, 3]), training=False), np.ones((2, 3)) / np.sqrt(1.001), 1e-5)


def test_its_place_in_keras():
    layer = hvd.SyncBatchNormalization(momentum=0.5, name="norm")
    assert isinstance(layer, tf.keras.layers.BatchNormalization) and layer.name == "norm"
    assert hvd.SyncBatchNormalization().name.startswith("sync_batch_normalization")
    again = type(layer).from_config(layer.get_config())
    assert again.momentum == 0.5 and again.name == "norm" and type(again) is hvd.SyncBatchNormalization
    for fused in (True, None):
        raises(ValueError, "fused", lambda f=fused: hvd.SyncBatchNormalization(fused=f))
