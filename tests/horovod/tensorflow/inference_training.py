"""Trains three models with Horovod on each rank, and saves them on rank 0, as programs do. For inference_program.py."""

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd

v1 = tf.compat.v1
INPUTS = np.random.RandomState(0).uniform(-1, 1, (5, 3)).astype(np.float32)


def in_a_graph(folder: str) -> np.ndarray:
    """Trains in a session that writes checkpoints, and saves a SavedModel of the forward part."""
    with tf.Graph().as_default():
        weight = v1.get_variable("weight", [3, 2])
        inputs = v1.placeholder_with_default(INPUTS, [None, 3])
        outputs = tf.tanh(tf.matmul(inputs, weight))
        optimizer = hvd.DistributedOptimizer(v1.train.AdamOptimizer(0.1), backward_passes_per_step=2)
        step = v1.train.get_or_create_global_step()
        op = optimizer.minimize(tf.reduce_mean(tf.square(outputs - 0.5)), global_step=step)
        hooks = [hvd.BroadcastGlobalVariablesHook(0), v1.train.StopAtStepHook(last_step=4)]
        directory = f"{folder}/monitored" if hvd.rank() == 0 else None
        with v1.train.MonitoredTrainingSession(checkpoint_dir=directory, hooks=hooks) as session:
            while not session.should_stop():
                session.run(op)
    if hvd.rank():
        return None
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("weight", [3, 2])
        inputs = v1.placeholder(tf.float32, [None, 3])
        outputs = tf.tanh(tf.matmul(inputs, weight))
        v1.train.Saver().restore(session, tf.train.latest_checkpoint(directory))
        v1.saved_model.simple_save(
            session, f"{folder}/saved_of_graph", {"inputs": inputs}, {"outputs": outputs}
        )
        return session.run(outputs, {inputs: INPUTS})


class Model(tf.Module):
    """A module whose forward function is exported. Its step has operations of Horovod, and is not."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable(tf.ones([3, 2]) * (hvd.rank() + 1.0))
        self._step = tf.function(self._train)

    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def __call__(self, inputs):
        return tf.tanh(tf.matmul(inputs, self.weight))

    def _train(self, inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(inputs) - 0.5))
        tape = hvd.DistributedGradientTape(tape)
        self.weight.assign_sub(0.1 * tape.gradient(loss, self.weight))


def in_a_module(folder: str) -> np.ndarray:
    model = Model()
    hvd.broadcast_variables([model.weight], root_rank=0)
    for _ in range(3):
        model._step(tf.constant(INPUTS))
    del model._step  # a SavedModel holds every function that has been called
    if hvd.rank() == 0:
        tf.saved_model.save(model, f"{folder}/saved_of_module")
        tf.train.Checkpoint(module=model).write(f"{folder}/checkpoint-1")
    return model(tf.constant(INPUTS)).numpy()


def in_keras(folder: str) -> np.ndarray:
    model = tf.keras.Sequential(
        [tf.keras.Input((3,)), tf.keras.layers.Dense(4, "tanh"), tf.keras.layers.Dense(2)]
    )
    hvd.broadcast_variables(model.variables, root_rank=0)
    optimizer = tf.keras.optimizers.SGD(0.1)

    @tf.function
    def step(inputs):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(inputs) - 0.5))
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    for _ in range(3):
        step(tf.constant(INPUTS))
    if hvd.rank() == 0:
        model.save(f"{folder}/model.keras")
        if hasattr(model, "export"):
            model.export(f"{folder}/saved_of_keras")
        else:
            tf.saved_model.save(model, f"{folder}/saved_of_keras")
    return model(tf.constant(INPUTS)).numpy()


def train(folder: str) -> None:
    found = {
        "of_monitored": in_a_graph(folder),
        "of_module": in_a_module(folder),
        "of_keras": in_keras(folder),
    }
    if hvd.rank() == 0:
        np.savez(f"{folder}/wanted.npz", inputs=INPUTS, **found)
    hvd.barrier()
