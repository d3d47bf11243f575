"""Train a small CNN on scikit-learn's handwritten digits with TensorFlow 2, while ranks die, come and go.

    horovodrun -np 2 --min-np 1 --max-np 4 --host-discovery-script ./discover.sh \\
        python examples/tensorflow2_elastic_digits.py

discover.sh prints the hosts that may be used now, such as `localhost:2`. Kill a process, or change what the script
prints: training goes on from the last commit. Written with Horovod's public API only, for Keras 2 (TensorFlow <= 2.15)
and Keras 3. Needs tensorflow and scikit-learn.
"""

import argparse
import os

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import horovod.tensorflow as hvd


def parse_arguments():
    parser = argparse.ArgumentParser(description="CNN on handwritten digits, elastic Horovod")
    parser.add_argument("--epochs", type=int, default=40, help="passes over the training data (default 40)")
    parser.add_argument(
        "--batch-size", type=int, default=32, help="samples per process and step (default 32)"
    )
    parser.add_argument(
        "--lr", type=float, default=0.001, help="learning rate for one process (default 0.001)"
    )
    parser.add_argument("--commit", type=int, default=5, help="steps between two commits (default 5)")
    parser.add_argument("--seed", type=int, default=42, help="for the split and the order (default 42)")
    return parser.parse_args()


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
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )


def make_training_step(model, optimizer):
    cross_entropy = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def training_step(images, labels):
        with tf.GradientTape() as tape:
            loss = cross_entropy(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape)  # averages over the processes that are there
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return training_step


def main():
    """Returns the accuracy on the test set."""
    arguments = parse_arguments()
    hvd.init()
    train_x, test_x, train_y, test_y = load_data(arguments.seed)
    model = make_model()
    optimizer = tf.keras.optimizers.Adam(arguments.lr * hvd.size())
    training_step = make_training_step(model, optimizer)

    def ranks_have_changed():
        optimizer.learning_rate.assign(arguments.lr * hvd.size())

    # `done`: the samples of this epoch that all processes together have seen.
    state = hvd.elastic.TensorFlowKerasState(model, optimizer, epoch=0, done=0, step=0)
    state.register_reset_callbacks([ranks_have_changed])

    @hvd.elastic.run
    def train(state):
        where = f"rank {hvd.rank()} of {hvd.size()}, process {os.getpid()}"
        print(f"{where}: begins with epoch {state.epoch}, sample {state.done}", flush=True)
        together = arguments.batch_size * hvd.size()
        while state.epoch < arguments.epochs:
            order = np.random.RandomState(arguments.seed + state.epoch).permutation(len(train_x))
            while state.done + together <= len(order):
                mine = order[state.done : state.done + together][hvd.rank() :: hvd.size()]
                loss = training_step(train_x[mine], train_y[mine])
                state.done += together
                state.step += 1
                if state.step % arguments.commit == 0:
                    state.commit()
            state.epoch, state.done = state.epoch + 1, 0
            loss = float(hvd.allreduce(loss, name="loss"))
            if hvd.rank() == 0:
                print(f"epoch {state.epoch}: loss {loss:.4f}", flush=True)
            state.commit()

    train(state)
    mine = slice(hvd.rank(), None, hvd.size())
    guesses = np.argmax(model(test_x[mine], training=False), axis=1)
    correct = hvd.allreduce(tf.constant((guesses == test_y[mine]).sum()), name="correct", op=hvd.Sum)
    accuracy = int(correct) / len(test_y)
    if hvd.rank() == 0:
        print(f"test accuracy {100 * accuracy:.2f} %", flush=True)
    hvd.shutdown()
    return accuracy


if __name__ == "__main__":
    main()
