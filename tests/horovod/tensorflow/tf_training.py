"""A small model that optimizers of tf.compat.v1 train, together and in one process, for the tests of optimizers."""

import functools

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd
from tf_support import data, near, v1

STEPS = 4
SHAPES = {"weight": (3, 2), "bias": (2,)}

KINDS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
    "adam": lambda: v1.train.AdamOptimizer(0.01),
    "rmsprop": lambda: v1.train.RMSPropOptimizer(0.01, momentum=0.5, centered=True),
    "adadelta": lambda: v1.train.AdadeltaOptimizer(1.0),
    "ftrl": lambda: v1.train.FtrlOptimizer(0.1),
    "proximal": lambda: v1.train.ProximalGradientDescentOptimizer(0.1),
}


def make_variables(resource=True):
    return [
        v1.get_variable(name, initializer=tf.constant(data(50, *shape), tf.float32), use_resource=resource)
        for name, shape in SHAPES.items()
    ]


def loss_of(weight, bias, inputs):
    return tf.reduce_mean(tf.square(tf.tanh(tf.matmul(inputs, weight)) + bias - 1.0))


def batch(step, rank, rows=4):
    return data(rank, rows, 3, seed=step)


def train(optimizer_of, feeds, steps=STEPS, resource=True, loss=loss_of, global_step=False, prepare=None):
    """The variables after some steps in a session, each with its batch of `feeds`."""
    with tf.Graph().as_default():
        if prepare is not None:
            prepare()
        variables = make_variables(resource)
        inputs = v1.placeholder(tf.float32, [None, 3])
        counter = v1.train.get_or_create_global_step() if global_step else None
        optimizer = optimizer_of(variables)
        op = optimizer.minimize(loss(*variables, inputs), var_list=variables, global_step=counter)
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            counts = []
            for step in range(steps):
                session.run(op, {inputs: feeds(step)})
                if global_step:
                    counts.append(session.run(counter))
            values = session.run(variables)
            return (values, counts) if global_step else values


def train_each(optimizers, feeds, loss=loss_of):
    """The variables of train() for each of these optimizers, which `optimizers` are functions that make. All are in one
    graph, since a graph of each takes several times as long."""
    with tf.Graph().as_default():
        inputs = v1.placeholder(tf.float32, [None, 3])
        variables, steps = [], []
        for place, make in enumerate(optimizers):
            with v1.variable_scope(f"model_{place}"):
                variables.append(make_variables())
            steps.append(make().minimize(loss(*variables[-1], inputs), var_list=variables[-1]))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for step in range(STEPS):
                session.run(steps, {inputs: feeds(step)})
            return session.run(variables)


def together(
    kind="momentum", feeds=lambda step: batch(step, hvd.rank()), resource=True, loss=loss_of, **options
):
    return train(
        lambda _: hvd.DistributedOptimizer(KINDS[kind](), **options), feeds, resource=resource, loss=loss
    )


def alone(kind="momentum", feeds=None, loss=loss_of, **options):
    """The variables that one process trains on the data of all ranks, or on those of `feeds`."""
    return train(
        lambda _: KINDS[kind](),
        feeds or (lambda step: np.concatenate([batch(step, r) for r in range(hvd.size())])),
        loss=loss,
        **options,
    )


def reference(kind="momentum", **options):
    """alone() for tests in which all ranks call it: rank 0 has it computed, and the others get its values, as each graph
    of TensorFlow takes time to make."""
    return hvd.broadcast_object(alone(kind, **options) if hvd.rank() == 0 else None, 0, name="reference")


@functools.cache
def references():
    """reference() of each kind of optimizer, for loss_of() and STEPS steps."""
    found = None
    if hvd.rank() == 0:
        found = train_each(
            KINDS.values(), lambda step: np.concatenate([batch(step, r) for r in range(hvd.size())])
        )
    return dict(zip(KINDS, hvd.broadcast_object(found, 0, name="references"), strict=True))


def reference_of(kind="momentum"):
    return references()[kind]


def agree(found, wanted, tolerance=1e-5):
    for f, w in zip(found, wanted, strict=True):
        near(f, w, tolerance)


def embedded(table, bias, inputs):
    """A loss that looks up rows of the table, as tf.IndexedSlices in the gradient."""
    rows = tf.cast(tf.round(tf.abs(inputs[:, 0]) * 2), tf.int64)
    return tf.reduce_mean(tf.square(tf.nn.embedding_lookup(table, rows) - bias) * inputs[:, :2])
