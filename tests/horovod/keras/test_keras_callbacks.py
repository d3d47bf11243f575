"""The callbacks, in real training."""

import contextlib
import io
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from harness.rank import needs
from horovod.common.exceptions import OperationFailedError
from keras_support import (
    KERAS3,
    KIND,
    ROWS,
    STEPS,
    TORCH,
    batches,
    compiled,
    data_of,
    hvd,
    keras,
    layer_of,
    model_of,
    numpy_of,
    on,
    raises,
    same_everywhere,
    weights_of,
)

pytestmark = [on("torch", 2), on("torch", 1, slow=True), on("tf.keras", 2)]

callbacks, optimizers = hvd.callbacks, keras.optimizers


class Rates(keras.callbacks.Callback):
    """Records the learning rate of each batch."""

    def on_train_begin(self, logs=None):
        self.rates = []

    def on_train_batch_end(self, batch, logs=None):
        self.rates.append(float(numpy_of(self.model.optimizer.learning_rate)))


def fit(model, epochs, *used, optimizer=None, metrics=None, steps=STEPS, **options):
    """Train with callbacks, `steps` steps in each epoch. Returns the result of fit()."""
    optimizer = hvd.DistributedOptimizer(optimizer or optimizers.SGD(0.1, momentum=0.9))
    model.compile(optimizer, "mse", metrics=metrics, **compiled())
    arguments, how = batches(*data_of(hvd.rank(), steps))
    return model.fit(*arguments, epochs=epochs, callbacks=list(used), verbose=0, **how, **options)


def test_variables_are_broadcast_at_the_end_of_the_first_batch():
    root = hvd.size() - 1
    model = model_of(seed=hvd.rank())
    before = weights_of(model)
    seen = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(weights_of(self.model))

    callback = callbacks.BroadcastGlobalVariablesCallback(root)
    look = Look()
    fit(model, 1, look, callback)
    # The first batch is trained with this rank's weights; Look comes before the broadcast.
    assert callback.broadcast_done
    change = seen[0] - before
    same_everywhere(weights_of(model))
    same_everywhere(seen[1])
    random = np.random.RandomState(100 + root)
    of_root = np.concatenate([random.uniform(-0.7, 0.7, w.shape).ravel() for w in model.get_weights()])
    if hvd.rank() == root:
        np.testing.assert_array_equal(before, of_root)
    step_after = seen[1] - of_root
    assert np.abs(step_after).max() < 0.5 + np.abs(change).max(), "not the root's weights"
    same_everywhere(np.concatenate([numpy_of(v).ravel() for v in list(model.optimizer.variables)]))


def test_local_variables_are_not_broadcast():
    model = model_of(seed=hvd.rank())
    first = model.layers[0].trainable_weights
    callback = callbacks.BroadcastGlobalVariablesCallback(0, local_variables=first[:1])
    callback.register_local_var(first[1])
    optimizer = optimizers.SGD(0.0)
    before = model.get_weights()
    fit(model, 1, callback, optimizer=optimizer)
    after = model.get_weights()
    np.testing.assert_array_equal(after[0], before[0])
    np.testing.assert_array_equal(after[1], before[1])
    same_everywhere(np.concatenate([w.ravel() for w in after[2:]]))
    for wrong in (["dense"], [np.zeros(3)], [3]):
        with raises(ValueError, "A variable of the model is required"):
            callbacks.BroadcastGlobalVariablesCallback(0, local_variables=wrong)


def test_state_on_one_rank_reaches_all():
    model = model_of()
    optimizer = hvd.DistributedOptimizer(optimizers.Adam(0.01))
    model.compile(optimizer, "mse", **compiled())
    x, y = data_of(hvd.rank(), 1)
    model.train_on_batch(x, y)
    if hvd.rank() == 0:  # as if rank 0 had read a checkpoint
        optimizer.iterations.assign(41)
    callback = callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(x, y, batch_size=ROWS, verbose=0, callbacks=[callback])
    assert int(numpy_of(optimizer.iterations)) == 42


def test_metrics_are_averaged_for_those_that_come_after():
    seen, local = {}, {}

    class Keep(keras.callbacks.Callback):
        def __init__(self, where):
            super().__init__()
            self.where = where

        def on_epoch_end(self, epoch, logs=None):
            self.where[epoch] = dict(logs)

    other, _ = batches(*data_of(hvd.rank() + 10, 1))
    validation = {"validation_data": other[0] if len(other) == 1 else other}
    used = [Keep(local), callbacks.MetricAverageCallback(), Keep(seen)]
    history = fit(layer_of(), 2, *used, metrics=["mae"], steps=2, **validation)
    assert set(seen[0]) == {"loss", "mae", "val_loss", "val_mae"}
    for epoch in (0, 1):
        for name, value in seen[epoch].items():
            of_all = numpy_of(hvd.allgather(np.array([local[epoch][name]], np.float64)))
            assert len(of_all) == hvd.size()
            np.testing.assert_allclose(value, of_all.mean(), rtol=1e-12)
            assert history.history[name][epoch] == value, "History keeps another value"
    if hvd.size() > 1:
        assert local[0]["val_loss"] != seen[0]["val_loss"]
        options = validation if hvd.rank() == 0 else {}
        with raises(ValueError, "different metrics", "val_loss"):
            fit(layer_of(), 1, callbacks.MetricAverageCallback(), steps=1, **options)


def test_metrics_that_are_arrays_are_averaged():
    rank, size = hvd.rank(), hvd.size()
    logs = {"b": np.arange(6.0).reshape(2, 3) * (rank + 1), "a": float(rank), "c": np.array([rank])}
    callback = callbacks.MetricAverageCallback()
    callback.on_epoch_end(0, logs)
    np.testing.assert_allclose(logs["b"], np.arange(6.0).reshape(2, 3) * (size + 1) / 2)
    np.testing.assert_allclose(logs["c"], [(size - 1) / 2])
    assert logs["a"] == (size - 1) / 2 and isinstance(logs["a"], float)
    if size > 1:
        for wrong in (np.zeros(2), "text", None):
            with raises(ValueError, "different metrics", "per_class"):
                callback.on_epoch_end(0, {"per_class": wrong if rank == 0 else np.zeros(3)})
    with raises(ValueError, "averages numbers and arrays", "a text"):
        callback.on_epoch_end(0, {"said": "a text"})


def test_warm_up_batch_by_batch():
    size, target, batches_of_epoch = hvd.size(), 0.2, 2
    for steps, epochs in ((None, 3), (batches_of_epoch, 2)):
        rates, out = Rates(), io.StringIO()
        warmup = callbacks.LearningRateWarmupCallback(target, 2, steps_per_epoch=steps, verbose=1)
        with contextlib.redirect_stdout(out):
            history = fit(layer_of(), epochs, warmup, rates, steps=batches_of_epoch)
        wanted = [
            target / size * (1 + (epoch + (batch + 1) / batches_of_epoch) * (size - 1) / 2)
            for epoch in range(2)
            for batch in range(batches_of_epoch)
        ]
        wanted += [target] * batches_of_epoch * (epochs - 2)
        np.testing.assert_allclose(rates.rates, wanted, rtol=1e-6)
        np.testing.assert_allclose(
            history.history["lr"], [wanted[batches_of_epoch - 1], *[target] * (epochs - 1)], rtol=1e-6
        )
        assert "\nEpoch 2: finished gradual learning rate warmup to 0.2." in out.getvalue()


def test_schedules():
    rates = Rates()
    used = [
        callbacks.LearningRateScheduleCallback(0.1, 1.0, end_epoch=1),
        callbacks.LearningRateScheduleCallback(0.1, 0.5, start_epoch=1, end_epoch=3),
        callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 0.01 * epoch, start_epoch=3),
    ]
    history = fit(layer_of(), 5, *used, rates, steps=2)
    wanted = [0.1, 0.1, 0.05, 0.003, 0.004]
    np.testing.assert_allclose(rates.rates, np.repeat(wanted, 2), rtol=1e-6)
    np.testing.assert_allclose(history.history["lr"], wanted, rtol=1e-6)
    smooth = callbacks.LearningRateScheduleCallback(
        0.1, lambda epoch: 1 / (1 + epoch), staircase=False, steps_per_epoch=2
    )
    fit(layer_of(), 2, smooth, rates, steps=2)
    np.testing.assert_allclose(rates.rates, [0.1 / (1 + i / 2) for i in range(4)], rtol=1e-6)


def test_momentum_is_corrected():
    # By hand: v = m v (rate / rate before) - rate g, as in "Accurate, Large Minibatch SGD".
    x, y = (part[:ROWS] for part in data_of(0))
    per_epoch = [0.1, 0.02, 0.05]
    for corrected in (True, False):
        # One layer, so that the gradient is simple: d mean((xw - y)^2) / dw.
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, use_bias=False)])
        start = np.random.RandomState(3).uniform(-0.5, 0.5, (6, 3))
        model.set_weights([start])
        schedule = callbacks.LearningRateScheduleCallback(
            1.0, lambda epoch: per_epoch[int(epoch)], momentum_correction=corrected
        )
        optimizer = hvd.DistributedOptimizer(optimizers.SGD(0.1, momentum=0.9))
        model.compile(optimizer, "mse", **compiled())
        arguments, how = batches(x, y)
        model.fit(*arguments, epochs=3, verbose=0, callbacks=[schedule], **how)
        w, v, before = start, np.zeros_like(start), per_epoch[0]
        for rate in per_epoch:
            gradient = 2 * x.T @ (x @ w - y) / y.size
            v = 0.9 * v * (rate / before if corrected else 1.0) - rate * gradient
            w, before = w + v, rate
        np.testing.assert_allclose(model.get_weights()[0], w, rtol=0, atol=1e-6 if TORCH else 1e-8)


def test_arguments_of_schedules():
    with raises(ValueError, "`initial_lr` is required"):
        callbacks.LearningRateScheduleCallback(None, 0.1)
    with raises(ValueError, "`initial_lr` is required"):
        callbacks.LearningRateWarmupCallback(None)
    callback = callbacks.LearningRateWarmupCallback(0.1)
    callback.set_params({"epochs": 1, "steps": None, "verbose": 0})
    with raises(ValueError, "number of steps per epoch", "LearningRateWarmupCallback"):
        callback.on_train_begin()
    schedule = optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    with raises(TypeError, "LearningRateSchedule"):
        fit(
            layer_of(),
            1,
            callbacks.LearningRateScheduleCallback(0.1, 0.5),
            optimizer=optimizers.SGD(schedule),
        )


def test_best_model_is_saved_where_it_is_told():
    with TemporaryDirectory() as folder:
        used = []
        for weights_only, name in ((False, "best.keras"), (True, "best.weights.h5")):
            callback = callbacks.BestModelCheckpoint(monitor="loss", save_weights_only=weights_only)
            assert callback.filepath is None
            assert callback.save_best_only
            with raises(ValueError, "attribute `filepath`"):
                fit(layer_of(), 1, callback, steps=1)
            used.append(callbacks.BestModelCheckpoint(monitor="loss", save_weights_only=weights_only))
            used[-1].filepath = str(Path(folder) / name)
        fit(layer_of(), 2, *used, steps=1)
        assert all(Path(callback.filepath).exists() for callback in used)


def test_arguments_of_the_best_model_by_place():
    # As in Horovod: save_weights_only is the third parameter in horovod.tensorflow.keras only.
    if KIND == "tf.keras":
        callback = callbacks.BestModelCheckpoint("loss", 1, True, "max", 5)
    else:
        callback = callbacks.BestModelCheckpoint("loss", 1, "max", 5, save_weights_only=True)
    assert (callback.monitor, callback.verbose, callback.save_weights_only, callback.save_freq) == (
        *("loss", 1),
        *(True, 5),
    )
    assert callback.mode == "max" if KERAS3 else callback.monitor_op is np.greater


class State:
    """A state that records its attributes at each commit."""

    def __init__(self):
        self.batch, self.epoch, self.commits = 0, 0, []

    def commit(self):
        self.commits.append((self.epoch, self.batch))


def test_a_state_is_told_how_far_training_is():
    assert STEPS == 4
    elastic, state = hvd.elastic, State()
    told = [
        elastic.UpdateBatchStateCallback(state),
        elastic.UpdateEpochStateCallback(state),
        elastic.CommitStateCallback(state, 3),
    ]
    fit(layer_of(), 2, *told)
    assert state.commits == [(0, 2), (1, 0), (1, 2), (2, 0)], state.commits
    fit(layer_of(), 1, *told)  # continues, as after a reset
    assert state.commits[4:] == [(2, 2), (3, 0)], state.commits
    fit(layer_of(), 5, *told, initial_epoch=state.epoch)  # the epochs 3 and 4
    assert state.commits[6:] == [(3, 2), (4, 0), (4, 2), (5, 0)], state.commits
    for wrong in (0, 2.5, None):
        with raises(ValueError, "batches_per_commit"):
            elastic.CommitStateCallback(state, wrong)
    assert elastic.CommitStateCallback(state).batches_per_commit == 1


def test_names():
    for module in (callbacks, hvd.elastic):
        for name in (name for name in module.__all__ if name.endswith(("Callback", "Checkpoint"))):
            cls = getattr(module, name)
            assert issubclass(cls, keras.callbacks.Callback)
            assert cls.__doc__ or cls.__mro__[1].__doc__
    assert callbacks.MetricAverageCallback._supports_tf_logs


@needs(ranks=2)
def test_models_that_differ_are_refused_everywhere():
    """Nothing is sent, and no rank waits for a variable that another does not have."""
    last = hvd.size() - 1
    model = keras.Sequential([keras.layers.Dense(2) for _ in range(1 + (hvd.rank() == last))])
    model.build((None, 2))
    before = weights_of(model)
    callback = callbacks.BroadcastGlobalVariablesCallback(0)
    callback.set_model(model)
    with raises(OperationFailedError, f"'weight 2' is on rank {last}, but not on"):
        callback.on_batch_end(0)
    assert all(np.array_equal(a, b) for a, b in zip(before, weights_of(model)))
