"""Train a small CNN on scikit-learn's handwritten digits with Keras, while ranks die, come and go.

    horovodrun -np 2 --min-np 1 --max-np 4 --host-discovery-script ./discover.sh python examples/keras_elastic_digits.py
    KERAS_BACKEND=jax horovodrun ...                                            # or torch

discover.sh prints the hosts that may be used now, such as `localhost:2`. Kill a process, or change what the script
prints: training goes on from the last commit. Written with Horovod's public API only, for Keras 3 on TensorFlow, PyTorch
and JAX, and for Keras 2. Needs keras, one of these frameworks, and scikit-learn.
"""

import argparse
import os

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # horovod.jax works on arrays in host memory
import keras

import horovod.keras as hvd


def parse_arguments():
    parser = argparse.ArgumentParser(description="CNN on handwritten digits, Keras with elastic Horovod")
    parser.add_argument("--epochs", type=int, default=40, help="passes over the training data (default 40)")
    parser.add_argument(
        "--batch-size", type=int, default=32, help="samples per process and step (default 32)"
    )
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate for one process (default 0.02)")
    parser.add_argument("--commit", type=int, default=5, help="batches between two commits (default 5)")
    parser.add_argument("--seed", type=int, default=42, help="for the split (default 42)")
    return parser.parse_args()


def load_data(seed):
    """(train images, test images, train labels, test labels): float32 (N, 8, 8, 1) in 0..1, int64 (N,)."""
    digits = load_digits()
    images = digits.images[..., np.newaxis].astype(np.float32) / 16.0
    labels = digits.target.astype(np.int64)
    return train_test_split(images, labels, test_size=0.2, stratify=labels, random_state=seed)


def make_model():
    """Two convolutions and two dense layers: (N, 8, 8, 1) images to (N, 10) probabilities."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


class Tell(keras.callbacks.Callback):
    """Prints the end of each epoch."""

    def __init__(self, state):
        super().__init__()
        self.state = state

    def on_epoch_end(self, epoch, logs=None):
        print(f"epoch {self.state.epoch}: loss {logs['loss']:.4f}", flush=True)


def main():
    """Returns the accuracy on the test set."""
    arguments = parse_arguments()
    hvd.init()
    train_x, test_x, train_y, test_y = load_data(arguments.seed)
    model = make_model()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(arguments.lr, momentum=0.9))
    model.compile(optimizer, loss="sparse_categorical_crossentropy")
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)

    @hvd.elastic.run
    def train(state):
        where = f"rank {hvd.rank()} of {hvd.size()}, process {os.getpid()}"
        print(f"{where}: begins with epoch {state.epoch}", flush=True)
        share = len(train_x) // hvd.size()  # the same number of steps on all processes
        mine = slice(hvd.rank(), share * hvd.size(), hvd.size())
        callbacks = [
            # In this order: the commit contains the numbers, and the averages come before callbacks that use them.
            hvd.elastic.RescaleLearningRateCallback(arguments.lr, warmup_batches=50),
            hvd.callbacks.MetricAverageCallback(),
            hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.UpdateBatchStateCallback(state),
            *([Tell(state)] if hvd.rank() == 0 else []),
            hvd.elastic.CommitStateCallback(state, arguments.commit),
        ]
        # An epoch that was interrupted begins anew, with the weights of the last commit.
        model.fit(
            train_x[mine],
            train_y[mine],
            batch_size=arguments.batch_size,
            epochs=arguments.epochs,
            initial_epoch=state.epoch,
            callbacks=callbacks,
            verbose=0,
        )

    train(state)
    mine = slice(hvd.rank(), None, hvd.size())
    guesses = model.predict(test_x[mine], verbose=0).argmax(axis=1)
    correct = float(hvd.allreduce(float((guesses == test_y[mine]).sum()), name="correct", average=False))
    if hvd.rank() == 0:
        print(f"test accuracy {100 * correct / len(test_y):.2f} %", flush=True)
    hvd.shutdown()
    return correct / len(test_y)


if __name__ == "__main__":
    main()
