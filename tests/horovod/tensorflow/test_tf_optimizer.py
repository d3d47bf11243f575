"""DistributedOptimizer around optimizers of tf.compat.v1.

The weights that the ranks train together are compared with those that one process trains on the data of all ranks.
"""

import warnings

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from tf_support import data, raises, same_everywhere, v1
from tf_training import (
    KINDS,
    SHAPES,
    STEPS,
    agree,
    batch,
    embedded,
    loss_of,
    make_variables,
    reference,
    reference_of,
    together,
    train,
    train_each,
)

pytestmark = pytest.mark.ranks(2, framework="tensorflow")


def test_every_kind():
    makers = [lambda kind=kind: hvd.DistributedOptimizer(KINDS[kind]()) for kind in KINDS]
    for kind, found in zip(KINDS, train_each(makers, lambda step: batch(step, hvd.rank())), strict=True):
        agree(found, reference_of(kind), 1e-4)
        same_everywhere(found, f"kind.{kind}")


def test_options():
    single = reference_of()
    cases = (
        ({"gradient_predivide_factor": 4.0}, 1e-5),
        ({"compression": hvd.Compression.fp16}, 5e-3),
        ({"compression": hvd.Compression.bf16}, 5e-2),
        ({"groups": 1}, 1e-5),
        ({"groups": 2, "gradient_predivide_factor": 2.0}, 1e-5),
        ({"device_dense": "/cpu:0", "device_sparse": "/cpu:0", "use_locking": True}, 1e-5),
        ({"name": "Mine"}, 1e-5),
    )
    makers = [lambda o=o: hvd.DistributedOptimizer(KINDS["momentum"](), **o) for o, _ in cases]
    for (_, tolerance), found in zip(
        cases, train_each(makers, lambda step: batch(step, hvd.rank())), strict=True
    ):
        agree(found, single, tolerance)
    agree(together(op=hvd.Sum), reference(loss=lambda *a: hvd.size() * loss_of(*a)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        agree(together(num_groups=2), single)
    assert any(w.category is DeprecationWarning and "num_groups" in str(w.message) for w in caught)
    agree(
        train(
            lambda variables: hvd.DistributedOptimizer(KINDS["adam"](), groups=[variables[::-1]]),
            lambda step: batch(step, hvd.rank()),
        ),
        reference_of("adam"),
        1e-4,
    )


def test_bad_options():
    sgd = KINDS["sgd"]()
    for text, options in (
        ("op != Average", {"op": hvd.Sum, "gradient_predivide_factor": 2.0}),
        ("must be > 0", {"backward_passes_per_step": 0}),
        ("average_aggregated_gradients", {"op": hvd.Adasum, "average_aggregated_gradients": True}),
        ("non-negative integer", {"groups": -1}),
        ("needs a graph", {"backward_passes_per_step": 2}),
        ("needs a graph", {"backward_passes_per_step": 2, "op": hvd.Adasum}),
    ):
        raises(ValueError, text, lambda o=options: hvd.DistributedOptimizer(sgd, **o))
    raises(ValueError, "legacy TensorFlow or Keras", lambda: hvd.DistributedOptimizer("sgd"))
    keras = tf.keras.optimizers.SGD()
    raises(ValueError, "Adasum", lambda: hvd.DistributedOptimizer(keras, op=hvd.Adasum))


def test_slots_and_names():
    with tf.Graph().as_default():
        variables = make_variables()
        inner = KINDS["adam"]()
        optimizer = hvd.DistributedOptimizer(inner)
        assert optimizer.get_name() == "DistributedAdamOptimizer"
        assert isinstance(optimizer, v1.train.Optimizer)
        optimizer.minimize(loss_of(*variables, tf.ones([1, 3])))
        assert optimizer.get_slot_names() == inner.get_slot_names() == ["m", "v"]
        assert optimizer.get_slot(variables[0], "m") is inner.get_slot(variables[0], "m")
        assert len(optimizer.variables()) == 6
        assert "horovod" in str(type(optimizer))


def test_backward_passes_per_step():
    for passes, average in ((2, False), (3, True)):
        steps = 2 * passes

        def all_of(step, passes=passes):
            turn = step * passes
            return np.concatenate([batch(turn + k, r) for k in range(passes) for r in range(hvd.size())])

        def scaled(*a, passes=passes):
            return passes * loss_of(*a)

        found, counts = train(
            lambda _, p=passes, a=average: hvd.DistributedOptimizer(
                KINDS["momentum"](), backward_passes_per_step=p, average_aggregated_gradients=a
            ),
            lambda step: batch(step, hvd.rank()),
            steps=steps,
            global_step=True,
        )
        agree(found, reference(feeds=all_of, steps=2, loss=loss_of if average else scaled), 1e-4)
        assert counts == list(range(1, steps + 1)), counts
        same_everywhere(found, f"passes.{passes}")


def test_passes_are_kept_in_local_variables():
    with tf.Graph().as_default():
        variables = make_variables()
        optimizer = hvd.DistributedOptimizer(KINDS["sgd"](), backward_passes_per_step=2)
        optimizer.minimize(loss_of(*variables, tf.ones([1, 3])))
        helper = optimizer._agg_helper
        assert isinstance(helper, hvd.LocalGradientAggregationHelper)
        kept = [helper.counter, *helper.locally_aggregated_grads]
        assert len(kept) == 3 and all(v in v1.local_variables() for v in kept)
        assert not any(v is k for v in v1.global_variables() for k in kept)


def test_embeddings():
    single = reference("adagrad", loss=embedded)
    options = ({}, {"sparse_as_dense": True}, {"groups": 1})
    makers = [lambda o=o: hvd.DistributedOptimizer(KINDS["adagrad"](), **o) for o in options]
    for found in train_each(makers, lambda step: batch(step, hvd.rank()), embedded):
        agree(found, single, 1e-4)
    raises(
        ValueError,
        "sparse_as_dense",
        lambda: together("sgd", loss=embedded, backward_passes_per_step=2),
    )
    found = train(
        lambda _: hvd.DistributedOptimizer(KINDS["sgd"](), backward_passes_per_step=2, sparse_as_dense=True),
        lambda step: batch(step // 2, hvd.rank()),
        loss=embedded,
    )
    agree(found, reference("sgd", steps=2, loss=lambda *a: 2 * embedded(*a)), 1e-4)


def test_ranks_whose_graphs_differ():
    def prepare():
        if hvd.rank() == 0:
            for i in range(5):
                tf.reduce_sum(tf.constant(float(i)) * 2.0, name="gradients/Sum")

    found = train(
        lambda _: hvd.DistributedOptimizer(KINDS["adam"]()),
        lambda step: batch(step, hvd.rank()),
        prepare=prepare,
    )
    agree(found, reference_of("adam"), 1e-4)


def test_eager_mode():
    variables = [tf.Variable(data(50, *shape), dtype=tf.float32) for shape in SHAPES.values()]
    for options in ({}, {"op": hvd.Adasum}):
        start = [v.numpy() for v in variables]
        optimizer = hvd.DistributedOptimizer(KINDS["sgd"](), **options)
        inputs = tf.constant(batch(0, hvd.rank()), tf.float32)
        for _ in range(2):
            optimizer.minimize(lambda i=inputs: loss_of(*variables, i), var_list=variables)
        same_everywhere(variables, f"eager.{options}")
        assert any(np.abs(v.numpy() - s).max() > 1e-4 for v, s in zip(variables, start))


def test_in_a_function():
    variables = [tf.Variable(data(50, *shape), dtype=tf.float32) for shape in SHAPES.values()]
    optimizer = hvd.DistributedOptimizer(KINDS["momentum"]())

    @tf.function
    def step(inputs):
        optimizer.minimize(lambda: loss_of(*variables, inputs), var_list=variables)

    for number in range(STEPS):
        step(tf.constant(batch(number, hvd.rank()), tf.float32))
    agree(variables, reference_of())


def test_gradients_clipped_after_the_reduction():
    def clipped(optimizer):
        with tf.Graph().as_default():
            variables = make_variables()
            inputs = v1.placeholder(tf.float32, [None, 3])
            grads, found = zip(*optimizer.compute_gradients(loss_of(*variables, inputs)))
            grads, _ = tf.clip_by_global_norm(grads, 0.1)
            op = optimizer.apply_gradients(zip(grads, found))
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                rows = (
                    np.concatenate([batch(0, r) for r in range(hvd.size())])
                    if not _is_ours(optimizer)
                    else batch(0, hvd.rank())
                )
                session.run(op, {inputs: rows})
                return session.run(variables)

    agree(clipped(hvd.DistributedOptimizer(KINDS["sgd"]())), clipped(KINDS["sgd"]()))


def _is_ours(optimizer):
    return type(optimizer).__module__.startswith("horovod")
