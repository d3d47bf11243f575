"""The Keras and the Horovod of a test job, where tests run (on()), a small model and its data, and the reference: one
process that trains with a plain optimizer on the joined batches of all ranks. The ranks compute in float64, so that equal
results agree to the last digits; on JAX in float32.
"""

import contextlib
import functools
import os
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from harness.installed import is_installed

_FRAMEWORK = {"torch": "torch", "jax": "jax", "tensorflow": "tensorflow", "tf.keras": "tensorflow"}
# Of this process; "" in pytest's own, which imports any Keras and runs no test.
KIND = os.environ.get("HVD_TEST_KERAS_KIND", "")
TORCH = KIND == "torch"
# As on a machine without TensorFlow, which Keras would import to save a model or to set a seed.
if KIND in ("torch", "jax"):
    sys.modules.setdefault("tensorflow", None)
with pytest.MonkeyPatch.context() as variables:
    if not KIND and is_installed("torch"):  # of the backends the fastest to import
        variables.setenv("KERAS_BACKEND", os.environ.get("KERAS_BACKEND", "torch"))
    if KIND == "tf.keras":
        from tensorflow import keras

        import horovod.tensorflow.keras as hvd
    else:
        import keras

        import horovod.keras as hvd

KERAS3 = hasattr(keras, "ops")
STEPS, ROWS = 4, 5
# Keras 3.15 on PyTorch rounds the gradients of kernels to float32, also for models and data of float64.
TOLERANCE = 1e-6 if TORCH else 1e-11
if KIND not in ("", "jax"):
    (keras.config if KERAS3 else keras.backend).set_floatx("float64")
    if KERAS3:  # it keeps the policy that it was first asked for
        keras.config.set_dtype_policy("float64")


def on(kind, *ranks, **options):
    """The mark of tests that run on these numbers of ranks with a kind of Keras; on none where its framework is missing.

    Kinds: "tensorflow", "torch" and "jax" are horovod.keras with that backend, "tf.keras" is horovod.tensorflow.keras.
    """
    counts = ranks if is_installed(_FRAMEWORK[kind]) else ()
    return pytest.mark.ranks(*counts, id=kind, **options_of(kind), **options)


def options_of(kind):
    """Those of run_on_ranks() for a kind of Keras; each has living ranks of its own."""
    return {
        "framework": _FRAMEWORK[kind],
        "process_env": {"HVD_TEST_KERAS_KIND": kind},
        "init": "horovod.tensorflow.keras" if kind == "tf.keras" else "horovod.keras",
        "init_options": {"process_sets": "dynamic"},
    }


def modes():
    """Arguments of compile() for each way in which a training step can run."""
    if TORCH:
        return [{}]
    graph = {"run_eagerly": False}
    return [{"run_eagerly": True}, {**graph, "jit_compile": False}, {**graph, "jit_compile": True}]


def compiled():
    """Arguments of compile() for tests that need only one way: on TensorFlow, tracing a step takes longer than four
    steps. On JAX, to compile each operation takes longer than to compile a step."""
    return {} if KIND in ("torch", "jax") else {"run_eagerly": True}


def model_of(seed=0, outputs=3, hidden=2 if TORCH else 1):
    """A model with hidden layers. The same seed gives the same weights on all ranks.

    A step of Keras on TensorFlow takes as long as the variables are many, so there are fewer of them."""
    layers = [keras.layers.Dense(8, activation="tanh") for _ in range(hidden)]
    model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(outputs)])
    set_weights(model, seed)
    return model


def layer_of(seed=0):
    """A model of one layer, for tests that count steps: they take as long as the layers are many."""
    return model_of(seed, hidden=0)


def set_weights(model, seed):
    random = np.random.RandomState(100 + seed)
    model.set_weights([random.uniform(-0.7, 0.7, w.shape) for w in model.get_weights()])


def data_of(rank, steps=STEPS, rows=ROWS):
    """(inputs, targets) of a rank."""
    random = np.random.RandomState(1000 + rank)
    return random.normal(size=(steps * rows, 6)), random.normal(size=(steps * rows, 3))


def batches(x, y, rows=ROWS):
    """(arguments, options) with which fit() takes the data in this order. On TensorFlow they are a dataset: Keras needs
    twice the time for arrays."""
    if KIND in ("torch", "jax"):
        return (x, y), {"batch_size": rows, "shuffle": False}
    import tensorflow as tf

    parts = tuple(part.reshape(-1, rows, part.shape[1]) for part in (x, y))
    return (tf.data.Dataset.from_tensor_slices(parts),), {"shuffle": False}


def joined(ranks, steps=STEPS, rows=ROWS):
    """The data of several ranks: each batch consists of one batch of each rank."""
    parts = [data_of(rank, steps, rows) for rank in ranks]
    return tuple(
        np.concatenate([p[i].reshape(steps, rows, -1) for p in parts], axis=1).reshape(
            steps * rows * len(parts), -1
        )
        for i in (0, 1)
    )


def sgd():
    """An optimizer for tests that need only one."""
    return keras.optimizers.SGD(0.1, momentum=0.9)


@functools.cache
def trained_with_sgd():
    """The weights of the reference for sgd()."""
    return train_alone(sgd())


def of_rank_0(train):
    """The weights of the model that `train()` returns. Rank 0 alone calls it and the others get the weights, as all would
    compute the same."""
    weights = weights_of(train()) if hvd.rank() == 0 else np.zeros(0)
    return numpy_of(hvd.allgather(weights, "of rank 0"))


def train_alone(optimizer, model=None):
    """The weights of a model that one process trains on the data of all ranks with a plain optimizer."""
    size = hvd.size()
    return of_rank_0(lambda: train_on(joined(range(size)), ROWS * size, optimizer, model))


def train_together(optimizer, model=None, fit=False, **options):
    """A model that all ranks train on their own data; `options` are those of compile()."""
    return train_on(data_of(hvd.rank()), ROWS, optimizer, model, fit, **options)


def train_on(data, rows, optimizer, model=None, fit=False, **options):
    """A model that is trained on batches of `rows` rows of (inputs, targets)."""
    model = model or model_of()
    model.compile(optimizer, **{"loss": "mse", **compiled(), **options})
    if fit:
        arguments, options = batches(*data, rows)
        model.fit(*arguments, epochs=1, verbose=0, **options)
    else:  # without the pipeline of fit(), which costs more than the steps
        for i in range(STEPS):
            model.train_on_batch(*(part[i * rows : (i + 1) * rows] for part in data))
    return model


def mean_square(model, x, y):
    """The loss of a batch, as a tensor of the backend."""
    if TORCH:
        return keras.ops.mean(keras.ops.square(model(x) - keras.ops.convert_to_tensor(y)))
    import tensorflow as tf

    return tf.reduce_mean(tf.square(model(tf.convert_to_tensor(x)) - tf.convert_to_tensor(y)))


def gradients_and_variables(model, x, y):
    """(gradients, variables) of one batch, computed by the backend itself."""
    variables = model.trainable_weights
    if TORCH:
        model.zero_grad()
        mean_square(model, x, y).backward()
        return [v.value.grad for v in variables], variables
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = mean_square(model, x, y)
    return tape.gradient(loss, variables), variables


def numpy_of(variable):
    return np.array(variable.numpy() if hasattr(variable, "numpy") else variable)


def weights_of(model):
    """All weights of a model in one vector."""
    return np.concatenate([np.asarray(w, np.float64).ravel() for w in model.get_weights()])


def same_everywhere(values, name=None):
    """Raise AssertionError unless all ranks have bit-identical values."""
    rows = numpy_of(hvd.allgather(np.asarray(values)[None], name))
    assert all(np.array_equal(rows[0], row) for row in rows), (
        f"ranks differ by up to {np.abs(rows - rows[0]).max()}"
    )


def agree(model, wanted, tolerance=TOLERANCE):
    """Raise AssertionError unless a model has the wanted weights, those of another model or a vector, and the same on all
    ranks."""
    found, wanted = weights_of(model), weights_of(wanted) if hasattr(wanted, "get_weights") else wanted
    assert np.abs(found).max() < 10, "training diverged"
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance)
    same_everywhere(found)


def saved(model, folder, form):
    path = str(Path(folder) / (f"m{hvd.rank()}" + ("" if form == "saved_model" else f".{form}")))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras warns that h5 is an old format
        model.save(path)
    return path


@contextlib.contextmanager
def raises(kind, *fragments):
    """A context: raises AssertionError unless its block raises a `kind` whose text contains all fragments."""
    try:
        yield
    except kind as error:
        for fragment in fragments:
            assert fragment in str(error), f"{fragment!r} is not in {str(error)!r}"
    else:
        raise AssertionError(f"no {kind} was raised")
