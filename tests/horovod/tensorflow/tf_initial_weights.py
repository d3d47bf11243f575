"""Trainings with and without the first broadcast, for test_tf_initial_weights.py."""

import tensorflow as tf

import horovod.tensorflow as hvd


def variables(value):
    return [tf.Variable(tf.fill([3, 2], float(value)), name="kernel"), tf.Variable([0.5, 0.5], name="bias")]


def train(parts, as_graph=False, jit_compile=None, after_first=None, local=(), groups=None):
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(tf.ones([4, 3]) @ parts[0] + parts[1]))
        tape = hvd.DistributedGradientTape(tape, groups=groups)
        for part in local:
            tape.register_local_source(part)
        for part, gradient in zip(parts, tape.gradient(loss, parts)):
            part.assign_sub(0.01 * gradient)

    run = tf.function(step, jit_compile=jit_compile) if as_graph else step
    for number in range(3):
        run()
        if number == 0 and after_first:
            after_first()


def without_broadcast(kind):
    options = {
        "eager": {},
        "graph": {"as_graph": True},
        "xla": {"as_graph": True, "jit_compile": True},
        "groups": {"as_graph": True, "groups": 1},
    }[kind]
    train(variables(hvd.rank()), **options)


def broadcast_first(as_graph):
    parts = variables(hvd.rank())
    hvd.broadcast_variables(parts, root_rank=0)
    train(parts, as_graph)


def broadcast_after_the_first_step(as_graph):
    parts = variables(hvd.rank())
    train(parts, as_graph, after_first=lambda: hvd.broadcast_variables(parts, root_rank=0))


def local_source():
    parts = variables(hvd.rank())
    train(parts, local=parts[:1])


def keras_fit(with_callback, jit_compile=False):
    import horovod.tensorflow.keras as hvd_keras

    keras = tf.keras
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="dense")])
    model.compile(
        hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse", jit_compile=jit_compile
    )
    callbacks = [hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)] if with_callback else []
    model.fit(tf.ones([8, 3]), tf.ones([8, 2]), batch_size=2, verbose=0, callbacks=callbacks)


def keras_local_layer():
    import horovod.tensorflow.keras as hvd_keras

    keras = tf.keras
    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(2, name="own"),
            keras.layers.Dense(2, kernel_initializer="ones"),
        ]
    )
    optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.01))
    for weight in model.layers[-2].trainable_weights:
        optimizer.register_local_var(weight)
    model.compile(optimizer, loss="mse", run_eagerly=True)
    for _ in range(2):
        model.train_on_batch(tf.ones([8, 3]), tf.ones([8, 2]))
