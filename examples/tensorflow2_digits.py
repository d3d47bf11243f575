"""Train a small CNN on scikit-learn's handwritten digits with a gradient tape in TensorFlow 2.

    horovodrun -np 2 python examples/tensorflow2_digits.py
    mpirun -np 2 python examples/tensorflow2_digits.py
    python examples/tensorflow2_digits.py                       # one process

Written with Horovod's public API only, for Keras 2 (TensorFlow <= 2.15) and Keras 3. A checkpoint lies in
./out/tensorflow2 (--output). Needs tensorflow, scikit-learn and tqdm.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import horovod.tensorflow as hvd


def parse_arguments():
    parser = argparse.ArgumentParser(description="CNN on handwritten digits, gradient tape with Horovod")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the training data (default 20)")
    parser.add_argument(
        "--batch-size", type=int, default=32, help="samples per process and step (default 32)"
    )
    parser.add_argument(
        "--lr", type=float, default=0.001, help="learning rate for one process (default 0.001)"
    )
    parser.add_argument("--seed", type=int, default=42, help="for the split and the weights (default 42)")
    parser.add_argument("--jit", action="store_true", help="compile the training step with XLA")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument(
        "--output", type=Path, default=Path("out"), help="folder for the results (default ./out)"
    )
    arguments = parser.parse_args()
    if arguments.epochs < 1 or arguments.batch_size < 1:
        parser.error("--epochs and --batch-size must be at least 1")
    return arguments


def take_devices():
    """Each process takes one GPU, where there are any, and its part of the host's cores."""
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    cores = max(1, len(os.sched_getaffinity(0)) // hvd.local_size())
    tf.config.threading.set_intra_op_parallelism_threads(cores)


def load_data(seed):
    """(train images, test images, train labels, test labels): float32 (N, 8, 8, 1) in 0..1, int64 (N,)."""
    digits = load_digits()
    images = digits.images[..., np.newaxis].astype(np.float32) / 16.0
    labels = digits.target.astype(np.int64)
    return train_test_split(images, labels, test_size=0.2, stratify=labels, random_state=seed)


def make_model():
    """Two convolutions and two dense layers: (N, 8, 8, 1) images to (N, 10) logits."""
    return tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            tf.keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            tf.keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            tf.keras.layers.MaxPooling2D(2),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dropout(0.3),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dropout(0.3),
            tf.keras.layers.Dense(10),
        ]
    )


def make_training_step(arguments, model, optimizer):
    cross_entropy = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    compression = hvd.Compression.fp16 if arguments.fp16_allreduce else hvd.Compression.none

    @tf.function(jit_compile=arguments.jit)
    def training_step(images, labels):
        with tf.GradientTape() as tape:
            loss = cross_entropy(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape, compression=compression)  # averages over all processes
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return training_step


def evaluate(model, images, labels):
    """Accuracy over the whole test set. Every process takes each size-th sample."""
    mine = slice(hvd.rank(), None, hvd.size())
    logits = model(images[mine], training=False)
    correct = tf.math.count_nonzero(tf.argmax(logits, axis=1) == labels[mine])
    return hvd.allreduce(correct, name="test_correct", op=hvd.Sum).numpy() / len(labels)


def main():
    """Returns the trained weights, one array for each variable."""
    arguments = parse_arguments()
    hvd.init()
    take_devices()

    train_x, test_x, train_y, test_y = load_data(arguments.seed)
    share = len(train_x) // hvd.size()  # the same number of steps on all processes
    mine = slice(hvd.rank(), share * hvd.size(), hvd.size())
    dataset = tf.data.Dataset.from_tensor_slices((train_x[mine], train_y[mine]))
    dataset = dataset.shuffle(share, seed=arguments.seed + hvd.rank())  # anew in every pass
    dataset = dataset.batch(arguments.batch_size, drop_remainder=True)

    model = make_model()
    # The effective batch is size() times larger, and so is the rate.
    optimizer = tf.keras.optimizers.Adam(arguments.lr * hvd.size())
    training_step = make_training_step(arguments, model, optimizer)

    # A launcher that prefixes lines makes one of every redraw: there, redraw once a second and draw in ASCII.
    terminal = sys.stderr.isatty()
    bar = tqdm(
        total=arguments.epochs,
        desc="training",
        unit="epoch",
        disable=hvd.rank() != 0,
        mininterval=0.1 if terminal else 1.0,
        ascii=not terminal,
    )
    samples, seconds = 0, 0.0
    for epoch in range(arguments.epochs):
        started = time.perf_counter()
        for step, (images, labels) in enumerate(dataset):
            loss = training_step(images, labels)
            if epoch == 0 and step == 0:
                # After the first step, as only then the optimizer has made its variables. From here on
                # all processes have the same weights.
                hvd.broadcast_variables(model.variables, root_rank=0)
                hvd.broadcast_variables(optimizer.variables, root_rank=0)
            samples += len(labels)
        loss = hvd.allreduce(loss, name="last_loss").numpy()
        seconds += time.perf_counter() - started
        bar.set_postfix(loss=f"{loss:.4f}", refresh=False)
        bar.update()
    bar.close()

    accuracy = evaluate(model, test_x, test_y)
    samples = hvd.allreduce(tf.constant(samples), name="samples", op=hvd.Sum).numpy()
    if hvd.rank() == 0:  # rank 0 alone writes files
        checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
        path = checkpoint.save(str(arguments.output / "tensorflow2" / "checkpoint"))
        print(f"results: {path}", flush=True)
        print(
            f"test accuracy {100 * accuracy:.2f} %, {samples / seconds:.0f} samples/s "
            f"({hvd.size()} process(es), {seconds:.1f} s of training)",
            flush=True,
        )
    hvd.shutdown()
    return [variable.numpy() for variable in model.trainable_variables]


if __name__ == "__main__":
    main()
