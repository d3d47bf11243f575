"""A model of four parts whose gradients are known, for the tests of tapes."""

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd
from tf_support import data, near

SHAPES = [(3, 2), (2,), (4,), ()]


def variables():
    return [tf.Variable(tf.ones(shape), name=f"part_{i}/weight") for i, shape in enumerate(SHAPES)]


def slopes(rank):
    """The gradients of loss() on a rank: the factors of its sum."""
    return [data(rank, *shape, seed=i) for i, shape in enumerate(SHAPES)]


def loss(parts):
    return tf.add_n(
        [
            tf.reduce_sum(v * tf.constant(s, tf.float32))
            for v, s in zip(parts, slopes(hvd.rank()))
            if v is not None
        ]
    )


def gradients(parts, **options):
    with tf.GradientTape() as tape:
        target = loss(parts)
    return hvd.DistributedGradientTape(tape, **options).gradient(target, parts)


def mean_slopes(ranks=None):
    return [np.mean([slopes(r)[i] for r in ranks or range(hvd.size())], axis=0) for i in range(len(SHAPES))]


def agree(found, wanted, tolerance=1e-5):
    for f, w in zip(found, wanted, strict=True):
        near(f, w, tolerance)
