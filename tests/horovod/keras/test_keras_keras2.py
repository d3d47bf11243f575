"""Methods that only the optimizers of Keras 2 have, and the ways in which programs call them.

To be run with Keras 2: tests/system/versions/test_tf_oldest.py."""

import functools

import numpy as np
import pytest

from keras_support import KERAS3, agree, hvd, keras, modes, on, raises, train_alone, train_together

pytestmark = [on("tf.keras", 2), pytest.mark.skipif(KERAS3, reason="what only Keras 2 has")]

optimizers = keras.optimizers
MAKERS = (lambda: optimizers.SGD(0.5), lambda: optimizers.legacy.SGD(0.5))


def mean():
    """Of rank + 1."""
    return (1 + hvd.size()) / 2


def in_modes(step):
    """The same step eagerly, and in a function: its first call is made while TensorFlow traces."""
    import tensorflow as tf

    return step, tf.function(step, autograph=False)


def not_again(optimizer):
    is_legacy = isinstance(optimizer, optimizers.legacy.Optimizer)
    return {"experimental_aggregate_gradients": False} if is_legacy else {"skip_gradients_aggregation": True}


def test_legacy_optimizers():
    legacy = optimizers.legacy
    for make in (lambda: legacy.SGD(0.1, momentum=0.9), lambda: legacy.Adam(0.01)):
        for mode in modes():
            fit = mode == modes()[1]
            agree(train_together(hvd.DistributedOptimizer(make()), fit=fit, **mode), train_alone(make()))
    optimizer = hvd.DistributedOptimizer(legacy.Adam(0.01))
    assert type(optimizer).__module__ == "horovod._keras"


def test_several_passes_whose_first_is_applied_in_a_function():
    import tensorflow as tf

    for make in MAKERS:
        for mode in range(2):
            variable = tf.Variable([1.0, 2.0])
            optimizer = hvd.DistributedOptimizer(make(), backward_passes_per_step=2)

            def step(optimizer=optimizer, variable=variable):
                gradient = tf.ones_like(variable) * (hvd.rank() + 1)
                optimizer.apply_gradients([(gradient, variable)])

            for calls in range(1, 5):
                in_modes(step)[mode]() if calls == 1 else step()
                wanted = np.array([1.0, 2.0]) - (calls // 2) * 2 * 0.5 * mean()
                assert np.allclose(variable.numpy(), wanted), (mode, calls, variable)
                assert int(optimizer.iterations) == calls


def test_gradients_that_the_program_has_reduced_are_applied_as_they_are():
    import tensorflow as tf

    for make in MAKERS:
        for mode in range(2):
            variable = tf.Variable([1.0, 2.0])
            optimizer = hvd.DistributedOptimizer(make(), backward_passes_per_step=2)

            def step(optimizer=optimizer, variable=variable):
                pairs = [(tf.ones_like(variable), variable)]
                optimizer.apply_gradients(pairs, **not_again(optimizer))

            run = in_modes(step)[mode]
            for calls in range(1, 4):
                run()
                assert np.allclose(variable.numpy(), np.array([1.0, 2.0]) - 0.5 * calls), (mode, calls)


def test_gradients_that_the_optimizer_has_computed_are_summed_also_if_they_are_not_to_be_aggregated():
    import tensorflow as tf

    for make in MAKERS:
        for mode in range(2):
            variable = tf.Variable([1.0, 2.0])
            optimizer = hvd.DistributedOptimizer(make(), backward_passes_per_step=2)

            def step(optimizer=optimizer, variable=variable):
                pairs = optimizer._compute_gradients(
                    lambda: tf.reduce_sum(variable) * (hvd.rank() + 1), [variable]
                )
                optimizer.apply_gradients(pairs, **not_again(optimizer))

            run = in_modes(step)[mode]
            for calls in range(1, 5):
                run()
                wanted = np.array([1.0, 2.0]) - (calls // 2) * 2 * 0.5 * mean()
                assert np.allclose(variable.numpy(), wanted), (mode, calls, variable)


def test_several_passes_with_a_scaled_loss_in_a_function():
    import tensorflow as tf

    for make in MAKERS:
        variable = tf.Variable([1.0, 2.0])
        inner = hvd.DistributedOptimizer(make(), backward_passes_per_step=2)
        optimizer = keras.mixed_precision.LossScaleOptimizer(inner)

        @tf.function(autograph=False)
        def step(optimizer=optimizer, variable=variable):
            with tf.GradientTape() as tape:
                loss = optimizer.get_scaled_loss(tf.reduce_sum(variable) * (hvd.rank() + 1))
            gradients = optimizer.get_unscaled_gradients(tape.gradient(loss, [variable]))
            optimizer.apply_gradients(zip(gradients, [variable]))

        for calls in range(1, 5):
            step()
            wanted = np.array([1.0, 2.0]) - (calls // 2) * 2 * 0.5 * mean()
            assert np.allclose(variable.numpy(), wanted), (calls, variable)


def test_get_gradients_is_that_of_the_wrapped_class():
    import tensorflow as tf

    for make in MAKERS:
        base = type(make())

        class Own(base):
            def get_gradients(self, loss, params):
                return [tf.ones_like(p) * loss for p in params]

        variable = tf.Variable([1.0, 2.0])
        optimizer = hvd.DistributedOptimizer(Own(0.5))
        ask = functools.partial(optimizer.get_gradients, tf.constant(hvd.rank() + 1.0), [variable])
        for call in in_modes(ask):
            (gradient,) = call()
            assert np.allclose(gradient.numpy(), mean()), gradient
        # A class without a method of its own computes them, in a graph.
        plain = hvd.DistributedOptimizer(make())

        @tf.function(autograph=False)
        def computed(plain=plain, variable=variable):
            return plain.get_gradients(tf.reduce_sum(variable) * (hvd.rank() + 1), [variable])

        (gradient,) = computed()
        assert np.allclose(gradient.numpy(), mean()), gradient
        with raises((RuntimeError, ValueError)):
            plain.get_gradients(tf.constant(1.0), [variable])
