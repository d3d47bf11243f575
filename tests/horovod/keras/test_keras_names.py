"""Names of the original that programs import: horovod._keras.load_model, callbacks' Impl classes, elastic."""

from tempfile import TemporaryDirectory

import numpy as np

import horovod._keras
from horovod._keras import callbacks as implementations
from keras_support import data_of, hvd, keras, numpy_of, on, saved, train_together

pytestmark = [on("torch", 2), on("tf.keras", 2)]

optimizers = keras.optimizers


def test_load_model_of_the_shared_package():
    model = train_together(hvd.DistributedOptimizer(optimizers.Adam(0.01)))
    wrapped = []

    def wrap(cls):
        wrapped.append(cls.__name__)
        return lambda **config: hvd.DistributedOptimizer(cls(**config))

    with TemporaryDirectory() as folder:
        path = saved(model, folder, "keras")
        again = horovod._keras.load_model(keras, wrap, {optimizers.__name__}, path, None, None)
    assert wrapped == ["Adam"] and type(again.optimizer).__module__ == "horovod._keras"
    for found, kept in zip(again.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(numpy_of(found), numpy_of(kept))
    again.train_on_batch(*data_of(hvd.rank(), 1))


def test_callbacks_are_instances_of_the_original_s_names():
    made = {
        "BestModelCheckpoint": hvd.callbacks.BestModelCheckpoint(),
        "BroadcastGlobalVariablesCallback": hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        "LearningRateScheduleCallback": hvd.callbacks.LearningRateScheduleCallback(0.1, 0.5),
        "LearningRateWarmupCallback": hvd.callbacks.LearningRateWarmupCallback(0.1),
        "MetricAverageCallback": hvd.callbacks.MetricAverageCallback(),
    }
    for name, callback in made.items():
        assert isinstance(callback, getattr(implementations, f"{name}Impl")), name


def test_elastic_states_have_their_names():
    assert hvd.elastic.KerasState.__module__ == hvd.elastic.__name__
    assert not hasattr(hvd.elastic, "no_such_name")
