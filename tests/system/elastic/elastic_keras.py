"""Programs of elastic jobs on Keras, for each of its backends (KERAS_BACKEND): fit() in compiled steps, which new ranks
trace and the others do not."""

import keras
import numpy as np

import elastic_programs
import horovod.keras as hvd

ROWS = 4


def make():
    keras.utils.set_random_seed(1)  # the same first weights everywhere
    model = keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(2)]
    )
    return model, keras.optimizers.SGD(0.05, momentum=0.9)


def fit():
    """fit() with batches that are equal on all ranks: each step is the same for any number of ranks."""
    hvd.init()
    model, optimizer = make()
    model.compile(hvd.DistributedOptimizer(optimizer), "mse")
    random = np.random.RandomState(0)
    x, y = random.normal(size=(3 * ROWS, 5)), random.normal(size=(3 * ROWS, 2))
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    callbacks = [
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.CommitStateCallback(state, 1000),  # so at the end of an epoch only
    ]
    options = {"batch_size": ROWS, "shuffle": False, "verbose": 0}

    @hvd.elastic.run
    def train(state):
        steps = elastic_programs.Steps()
        while steps.go_on():
            model.fit(x, y, callbacks=callbacks, **options)

    train(state)
    assert int(np.asarray(keras.ops.convert_to_numpy(model.optimizer.iterations))) == 3 * state.epoch
    for number, weight in enumerate(model.get_weights()):
        elastic_programs.same_everywhere(weight, f"weight{number}")
    alone, optimizer = make()
    alone.compile(optimizer, "mse")
    alone.fit(x, y, epochs=state.epoch, **options)
    for found, wanted in zip(model.get_weights(), alone.get_weights()):
        np.testing.assert_allclose(found, wanted, atol=1e-4)
    elastic_programs.done(state.epoch, hvd.rank(), hvd.size())


if __name__ == "__main__":
    elastic_programs.main(globals())
