"""States and callbacks of hvd.elastic for Keras, on ranks of a job that is not elastic."""

import os
import shutil
import tempfile

import numpy as np

from horovod.common import _elastic_state
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from keras_support import (
    ROWS,
    batches,
    compiled,
    data_of,
    hvd,
    keras,
    model_of,
    numpy_of,
    on,
    raises,
    same_everywhere,
)

pytestmark = [on("torch", 2), on("tf.keras", 2), on("jax", 2)]


def made(seed=0, optimizer=None, **options):
    """A compiled model with a distributed optimizer."""
    model = model_of(seed)
    optimizer = hvd.DistributedOptimizer(optimizer or keras.optimizers.SGD(0.1, momentum=0.9), **options)
    model.compile(optimizer, "mse", **compiled())
    return model


def fit(model, *callbacks, epochs=1, **more):
    arguments, options = batches(*data_of(hvd.rank()))
    model.fit(*arguments, epochs=epochs, verbose=0, callbacks=list(callbacks), **options, **more)


def values(model):
    variables = model.optimizer.variables
    variables = [*model.weights, *(variables() if callable(variables) else variables)]
    return np.concatenate([np.asarray(numpy_of(v), np.float64).ravel() for v in variables])


def test_a_state_goes_back_to_its_last_commit():
    model = made()
    state = hvd.elastic.KerasState(model, batch=3, losses=[1.0])
    assert state.model is model and state.optimizer is model.optimizer
    before = values(model)
    for _ in range(2):
        fit(model)
        state.batch, _ = 9, state.losses.append(2.0)
        assert not np.array_equal(values(model), before)
        state.restore()
        np.testing.assert_array_equal(values(model), before)
        assert state.batch == 3 and state.losses == [1.0]
    fit(model)
    state.commit()
    kept = values(model)
    fit(model)
    state.restore()
    np.testing.assert_array_equal(values(model), kept)


def test_a_state_is_that_of_rank_0_after_sync():
    model = made(seed=hvd.rank())
    state = hvd.elastic.KerasState(model, epoch=hvd.rank() + 1)
    model.optimizer.learning_rate = 0.5 + hvd.rank()
    state.sync()
    same_everywhere(values(model))
    assert state.epoch == 1 and float(numpy_of(model.optimizer.learning_rate)) == 0.5
    kept = values(model)
    model.optimizer.learning_rate = 0.5 + hvd.rank()
    with _elastic_state.syncing(True):  # as after a death: only what differs is sent
        state.sync()
    np.testing.assert_array_equal(values(model), kept)
    synced = values(model)
    fit(model)
    state.restore()
    np.testing.assert_array_equal(values(model), synced)


def test_a_new_job_goes_on_from_a_commit_in_a_file():
    folder = tempfile.mkdtemp()  # of this rank: rank 0 alone writes
    path = os.path.join(folder, "commit")
    model = made(seed=hvd.rank())
    state = hvd.elastic.KerasState(model, epoch=0)
    assert state.keep_commits(path) is False
    fit(model)
    state.epoch = 5
    state.commit()
    kept, model = values(model), made(seed=8)
    state = hvd.elastic.KerasState(model, epoch=0)
    assert state.keep_commits(path) is (hvd.rank() == 0)
    if hvd.rank() == 0:
        np.testing.assert_array_equal(values(model), kept)
    state.sync()
    assert state.epoch == 5
    same_everywhere(values(model))
    shutil.rmtree(folder)


def test_run_goes_on_after_a_failure_in_fit():
    model = made(seed=hvd.rank())
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    calls, at_commit = [], []

    class Trouble(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if len(calls) == 1 and batch == 1:
                raise HorovodInternalError("raised by the program")
            if len(calls) == 2 and batch == 2:
                at_commit.append(values(self.model))
                raise HostsUpdatedInterrupt(skip_sync=False)

    @hvd.elastic.run
    def train(state):
        calls.append(values(model))
        fit(
            model,
            hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.CommitStateCallback(state, 100),
            Trouble(),
            epochs=2 - state.epoch,
        )
        return state.epoch

    assert train(state) == 2
    same_everywhere(calls[0])
    np.testing.assert_array_equal(calls[0], calls[1])  # the first batches were not committed
    np.testing.assert_array_equal(calls[2], at_commit[0])  # an update loses nothing
    assert len(calls) == 3
    same_everywhere(values(model))


def test_epochs_count_on_with_initial_epoch():
    """fit(initial_epoch=state.epoch), so that other callbacks see the epoch's number in the whole training."""
    model = made()
    state = hvd.elastic.KerasState(model, epoch=0)
    ended, calls = [], []

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            ended.append((epoch, state.epoch))
            if epoch == 1 and len(calls) == 1:
                raise HorovodInternalError("raised by the program")  # before the commit

    @hvd.elastic.run
    def train(state):
        calls.append(state.epoch)
        told = (hvd.elastic.UpdateEpochStateCallback(state), Look())
        fit(
            model,
            *told,
            hvd.elastic.CommitStateCallback(state, 100),
            epochs=4,
            initial_epoch=state.epoch,
        )

    train(state)
    assert calls == [0, 1] and state.epoch == 4
    assert ended == [(0, 1), (1, 2), (1, 2), (2, 3), (3, 4)], ended


@on("torch", 2)  # Keras on JAX has no sums of several passes
@on("tf.keras", 2)
def test_sums_of_several_passes_are_forgotten():
    model = made(backward_passes_per_step=3)
    state = hvd.elastic.KerasState(model)
    state.sync()
    x, y = data_of(hvd.rank())
    for _ in range(2):
        model.train_on_batch(x[:ROWS], y[:ROWS])
    state.restore()
    before = values(model)[: model.count_params()]
    for _ in range(2):
        model.train_on_batch(x[:ROWS], y[:ROWS])
        np.testing.assert_array_equal(values(model)[: model.count_params()], before)
    model.train_on_batch(x[:ROWS], y[:ROWS])
    assert not np.array_equal(values(model)[: model.count_params()], before)
    same_everywhere(values(model))


def test_a_model_must_be_built():
    with raises(ValueError, "not built"):
        hvd.elastic.KerasState(keras.Sequential([keras.layers.Dense(2)]))


@on("torch", 2)  # compiled steps of Keras on JAX take seconds
@on("tf.keras", 2)
def test_the_learning_rate_follows_the_number_of_ranks():
    rates = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            rates.append(float(numpy_of(self.model.optimizer.learning_rate)))

    model = made(optimizer=keras.optimizers.SGD(0.01, momentum=0.9))
    target = 0.02 * hvd.size()
    callback = hvd.elastic.RescaleLearningRateCallback(0.02, warmup_batches=3)
    fit(model, callback, Look())
    ramp = [0.01 + (target - 0.01) * part / 3 for part in (1, 2, 3)]
    np.testing.assert_allclose(rates, [*ramp, target], rtol=1e-6)
    model.optimizer.learning_rate = 0.5
    fit(model, callback, Look())  # the number of ranks is as before
    assert rates[4:] == [0.5] * 4
    for wrong in ({"initial_lr": 0}, {"initial_lr": 0.1, "warmup_batches": -1}):
        with raises(ValueError, "RescaleLearningRateCallback"):
            hvd.elastic.RescaleLearningRateCallback(**wrong)
