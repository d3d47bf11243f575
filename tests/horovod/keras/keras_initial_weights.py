"""A training with Keras on PyTorch, with and without the first broadcast: every rank executes it."""

import numpy as np

from keras_support import hvd, keras


def fit(with_callback):
    keras.utils.set_random_seed(hvd.rank())
    if hvd.rank() == 1:  # from now on the names that Keras gives differ between the ranks
        keras.Sequential([keras.Input((1,))])
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="dense")])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)] if with_callback else []
    x, y = np.ones((8, 3), np.float32), np.ones((8, 2), np.float32)
    model.fit(x, y, batch_size=2, verbose=0, callbacks=callbacks)
