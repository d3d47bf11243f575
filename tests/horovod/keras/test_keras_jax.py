"""Keras on JAX: compiled steps equal one process with the joined batches; callbacks, saved
models and options that need JAX's ways."""

import os
import tempfile

import numpy as np

from harness.rank import expect
from keras_support import hvd, keras, on

pytestmark = on("jax", 2)

STEPS, ROWS = 4, 5


def model_of(seed):
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3)]
    )


def data_of(ranks):
    parts = []
    for rank in ranks:
        random = np.random.RandomState(1000 + rank)
        parts.append((random.normal(size=(STEPS, ROWS, 6)), random.normal(size=(STEPS, ROWS, 3))))
    return tuple(
        np.concatenate([part[i] for part in parts], axis=1).reshape(-1, (6, 3)[i]).astype("float32")
        for i in (0, 1)
    )


def train(optimizer, ranks, seed=0, callbacks=(), **options):
    model = model_of(seed)
    model.compile(optimizer, loss="mse", **options)
    x, y = data_of(ranks)
    model.fit(
        x, y, batch_size=ROWS * len(ranks), epochs=2, shuffle=False, verbose=0, callbacks=list(callbacks)
    )
    return model


def weights_of(model):
    """All weights of a model in one vector, as JAX compiles an operation for each shape."""
    return np.concatenate([value.ravel() for value in model.get_weights()])


def same_everywhere(model):
    rows = np.asarray(hvd.allgather(weights_of(model)[None]))
    assert all(np.array_equal(rows[0], row) for row in rows)


def agree(model, wanted):
    np.testing.assert_allclose(weights_of(model), wanted, atol=2e-6)
    same_everywhere(model)


def alone(make):
    """The weights after a training by one process, rank 0: the others would compile and compute the same."""
    weights = weights_of(train(make(), range(hvd.size()))) if hvd.rank() == 0 else np.zeros(0, np.float32)
    return np.asarray(hvd.allgather(weights))


def adam():
    return keras.optimizers.Adam(0.01, clipnorm=0.5)


def test_fit_equals_one_process():
    agree(train(hvd.DistributedOptimizer(adam()), [hvd.rank()]), alone(adam))


def test_compression():
    def sgd():
        return keras.optimizers.SGD(0.05)

    wanted = alone(sgd)
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        model = train(hvd.DistributedOptimizer(sgd(), compression=compression), [hvd.rank()])
        same_everywhere(model)
        error = np.abs(weights_of(model) - wanted).max()
        assert 0 < error < 3e-2, error
        value = hvd.allreduce(np.float32([hvd.rank() + 1.0, 1 / 3]), compression=compression)
        assert value.dtype == "float32"
        np.testing.assert_allclose(value, [(hvd.size() + 1) / 2, 1 / 3], rtol=1e-2)
        assert value[1] != np.float32(1 / 3)


@on("jax", 2, slow=True)  # steps that are not compiled take seconds
def test_accumulated_and_eager_steps():
    agree(train(hvd.DistributedOptimizer(adam()), [hvd.rank()], run_eagerly=True), alone(adam))

    def make():
        options = {"learning_rate": 0.1, "momentum": 0.9, "gradient_accumulation_steps": 2}
        return keras.optimizers.SGD(**options)

    agree(train(hvd.DistributedOptimizer(make()), [hvd.rank()]), alone(make))


def test_callbacks():
    """The first step is made with other weights on each rank, and the broadcast after it replaces them."""
    calls = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(hvd.size() - 1),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.1, warmup_epochs=2),
    ]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    model = train(optimizer, [hvd.rank()], seed=hvd.rank(), callbacks=calls)
    same_everywhere(model)
    assert abs(float(optimizer.learning_rate) - 0.1) < 1e-6
    assert int(optimizer.iterations) == 2 * STEPS


def test_saved_models():
    model = train(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), [hvd.rank()])
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        again = hvd.load_model(path)
    agree(again, weights_of(model))
    x, y = data_of([hvd.rank()])
    again.fit(x, y, batch_size=ROWS, verbose=0)
    same_everywhere(again)


def test_refusals():
    optimizer = keras.optimizers.SGD(0.1)
    expect(
        ValueError,
        lambda: hvd.DistributedOptimizer(optimizer, backward_passes_per_step=2),
        "gradient_accumulation_steps",
    )
    assert float(hvd.allreduce(float(hvd.rank()), average=False)) == sum(range(hvd.size()))
    assert np.asarray(hvd.broadcast(np.full(2, hvd.rank()), hvd.size() - 1)).tolist() == [hvd.size() - 1] * 2
