"""Train a small CNN on scikit-learn's handwritten digits with Keras, on TensorFlow, PyTorch or JAX.

    horovodrun -np 2 python examples/keras_digits.py
    horovodrun -np 2 python examples/keras_digits.py --backend torch
    KERAS_BACKEND=jax horovodrun -np 2 python examples/keras_digits.py
    python examples/keras_digits.py                                    # one process

Written with Horovod's public API only. Keras 3 runs on each of them, Keras 2 (TensorFlow <= 2.15) on TensorFlow. The
best weights lie in ./out/keras (--output). Needs keras, tensorflow, torch or jax, and scikit-learn.
"""

import argparse
import os
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def parse_arguments():
    parser = argparse.ArgumentParser(description="CNN on handwritten digits, Keras with Horovod")
    parser.add_argument(
        "--backend",
        choices=["tensorflow", "torch", "jax"],
        default=os.environ.get("KERAS_BACKEND", "tensorflow"),
        help="of Keras (KERAS_BACKEND, else tensorflow)",
    )
    parser.add_argument("--epochs", type=int, default=20, help="passes over the training data (default 20)")
    parser.add_argument(
        "--batch-size", type=int, default=32, help="samples per process and step (default 32)"
    )
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate for one process (default 0.02)")
    parser.add_argument(
        "--warmup-epochs", type=int, default=3, help="epochs to reach the full rate (default 3)"
    )
    parser.add_argument("--seed", type=int, default=42, help="for the split and the weights (default 42)")
    parser.add_argument(
        "--output", type=Path, default=Path("out"), help="folder for the results (default ./out)"
    )
    arguments = parser.parse_args()
    if arguments.epochs < 1 or arguments.batch_size < 1:
        parser.error("--epochs and --batch-size must be at least 1")
    return arguments


arguments = parse_arguments()
os.environ["KERAS_BACKEND"] = arguments.backend  # read when Keras is imported
if arguments.backend == "jax":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # horovod.jax works on arrays in host memory
import keras  # noqa: E402

import horovod.keras as hvd  # noqa: E402


def take_devices():
    """Each process takes one GPU, where there are any, and its part of the host's cores."""
    if arguments.backend == "jax":
        return
    cores = max(1, len(os.sched_getaffinity(0)) // hvd.local_size())
    if arguments.backend == "torch":
        import torch

        torch.set_num_threads(cores)
        if torch.cuda.is_available():
            torch.cuda.set_device(hvd.local_rank())
        return
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(cores)
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")


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
            keras.layers.Dropout(0.3),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def make_callbacks(rate):
    """The callbacks that Horovod adds to training; `rate` is the learning rate of all processes together."""
    warm, last = arguments.warmup_epochs, arguments.epochs

    def factor(epoch):
        """A fifth of the rate from 60 % of the way on, and again from 80 % on."""
        progress = (epoch - warm) / (last - warm)
        return 0.2 ** ((progress >= 0.6) + (progress >= 0.8))

    callbacks = [
        # All processes begin with the weights of rank 0.
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        # Metrics of an epoch are those of all processes. Before callbacks that look at them.
        hvd.callbacks.MetricAverageCallback(),
        # Large steps from random weights diverge: from the rate of one process to that of all.
        hvd.callbacks.LearningRateWarmupCallback(
            initial_lr=rate, warmup_epochs=warm, verbose=int(hvd.rank() == 0)
        ),
        hvd.callbacks.LearningRateScheduleCallback(initial_lr=rate, multiplier=factor, start_epoch=warm),
    ]
    if hvd.rank() == 0:  # rank 0 alone writes files
        folder = arguments.output / "keras"
        folder.mkdir(parents=True, exist_ok=True)
        best = str(folder / "best.weights.h5")
        callbacks.append(
            keras.callbacks.ModelCheckpoint(
                best, monitor="val_accuracy", save_best_only=True, save_weights_only=True
            )
        )
    return callbacks


def main():
    """Returns the trained weights, one array for each variable."""
    hvd.init()
    take_devices()
    keras.utils.set_random_seed(arguments.seed + hvd.rank())

    train_x, test_x, train_y, test_y = load_data(arguments.seed)
    share = len(train_x) // hvd.size()  # the same number of steps on all processes
    mine = slice(hvd.rank(), share * hvd.size(), hvd.size())

    model = make_model()
    rate = arguments.lr * hvd.size()  # the effective batch is size() times larger
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.9))
    model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    quiet = 1 if sys.stdout.isatty() else 2
    model.fit(
        train_x[mine],
        train_y[mine],
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        validation_data=(test_x[hvd.rank() :: hvd.size()], test_y[hvd.rank() :: hvd.size()]),
        callbacks=make_callbacks(rate),
        verbose=quiet if hvd.rank() == 0 else 0,
    )

    # Every process counts over its part of the test set.
    guesses = model.predict(test_x[hvd.rank() :: hvd.size()], verbose=0).argmax(axis=1)
    correct = float((guesses == test_y[hvd.rank() :: hvd.size()]).sum())
    correct = hvd.allreduce(correct, name="test_correct", average=False)
    if hvd.rank() == 0:
        print(f"results: {arguments.output / 'keras' / 'best.weights.h5'}", flush=True)
        print(
            f"test accuracy {100 * float(correct) / len(test_y):.2f} % "
            f"({hvd.size()} process(es), Keras {keras.__version__} on {arguments.backend})",
            flush=True,
        )
    hvd.shutdown()
    return model.get_weights()


if __name__ == "__main__":
    main()
