"""The models that benchmarks/tensorflow_overhead.py trains, and the ways to do it. On ranks only."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd
import hvd_core
from harness.shapes import resnet50

RATE = 1e-3
BATCH = 16


def touch(number: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
    """Hands a number on, and gives the variable a gradient without computing: one value everywhere."""
    shape = variable.shape

    @tf.custom_gradient
    def apply(number, value):
        del value
        return tf.identity(number), lambda upstream: (upstream, tf.fill(shape, upstream))

    return apply(number, variable)


class Shaped:
    """Variables of given shapes, used one after the other, and next to no computation."""

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        self.variables = [tf.Variable(tf.zeros(shape), name=f"part_{i}") for i, shape in enumerate(shapes)]

    def loss(self, inputs: tf.Tensor) -> tf.Tensor:
        for variable in self.variables:
            inputs = touch(inputs, variable)
        return inputs

    def inputs(self) -> tf.Tensor:
        return tf.constant(1.0 + hvd.rank())


def small_cnn() -> tf.keras.Model:
    """A convolutional network for pictures of 32 x 32, with 83,000 parameters."""
    tf.keras.utils.set_random_seed(0)
    layers = [tf.keras.Input((32, 32, 3))]
    for width in (16, 32, 64):
        for stride in (2, 1):
            layers += [tf.keras.layers.Conv2D(width, 3, stride, "same"), tf.keras.layers.LayerNormalization()]
            layers += [tf.keras.layers.ReLU()]
    return tf.keras.Sequential([*layers, tf.keras.layers.Flatten(), tf.keras.layers.Dense(10)])


def pictures() -> tuple[np.ndarray, np.ndarray]:
    """(float32 (16, 32, 32, 3), int64 (16,)), others on each rank."""
    images = np.random.default_rng(hvd.rank()).standard_normal((BATCH, 32, 32, 3), dtype=np.float32)
    return images, np.arange(BATCH) % 10


class Cnn:
    """A real small network."""

    def __init__(self) -> None:
        self.model = small_cnn()
        # Keras 3 has variables of its own around those of TensorFlow, which have a method value().
        self.variables = [v if callable(v.value) else v.value for v in self.model.trainable_variables]

    def loss(self, inputs: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        images, labels = inputs
        logits = self.model(images, training=True)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

    def inputs(self) -> tuple[tf.Tensor, tf.Tensor]:
        return tuple(map(tf.constant, pictures()))


# name: the model, steps per run
MODELS = {
    "resnet50": (lambda: Shaped(resnet50()[::-1]), 6),
    "tiny161": (lambda: Shaped([(64,)] * 161), 40),
    "cnn": (Cnn, 20),
}


def through_numpy(gradients: list[tf.Tensor]) -> list[tf.Tensor]:
    """A program without operations in C++: all gradients pass through Python, as one group."""

    def reduce(*arrays):
        return hvd_core.grouped_allreduce(list(arrays), op=hvd_core.Average, name="through_numpy")

    reduced = tf.numpy_function(reduce, gradients, [gradient.dtype for gradient in gradients])
    for out, gradient in zip(reduced, gradients):
        out.set_shape(gradient.shape)
    return reduced


class Trainer:
    """One way to train one model; `step()` is a whole step of SGD in a tf.function."""

    def __init__(self, model: str, jit: bool, **options) -> None:
        self.options = options  # of DistributedGradientTape
        self.model = MODELS[model][0]()
        self.inputs = self.model.inputs()
        self.function = tf.function(self.body, jit_compile=jit)

    def body(self, inputs) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = self.model.loss(inputs)
        for variable, gradient in zip(self.model.variables, self.gradients(tape, loss)):
            variable.assign_sub(RATE * gradient)
        return loss

    def gradients(self, tape: tf.GradientTape, loss: tf.Tensor) -> list[tf.Tensor]:
        raise NotImplementedError

    def step(self) -> None:
        self.function(self.inputs).numpy()

    def result(self) -> list[np.ndarray]:
        return [variable.numpy() for variable in self.model.variables]


class Ours(Trainer):
    def gradients(self, tape, loss):
        tape = hvd.DistributedGradientTape(tape, **self.options)
        return tape.gradient(loss, self.model.variables)


class OursGrouped(Ours):
    """All gradients as one op."""

    def __init__(self, model: str, jit: bool) -> None:
        super().__init__(model, jit, num_groups=1)


class ThroughNumpy(Trainer):
    def gradients(self, tape, loss):
        return through_numpy(tape.gradient(loss, self.model.variables))


class Alone(Trainer):
    """Without communication: the cost of the model and the optimizer."""

    def gradients(self, tape, loss):
        return tape.gradient(loss, self.model.variables)
