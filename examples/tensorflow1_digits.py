"""Train a small CNN on scikit-learn's handwritten digits with a graph and a session, as in TensorFlow 1.

    horovodrun -np 2 python examples/tensorflow1_digits.py
    horovodrun -np 2 python examples/tensorflow1_digits.py --resume --epochs 40
    python examples/tensorflow1_digits.py                                           # one process

Written with `tf.compat.v1`, which TensorFlow 2 still has, and with Horovod's public API only: a program of that time
changes its import of tensorflow and nothing else. Rank 0 writes checkpoints into ./out/tensorflow1 (--output). Needs
tensorflow and scikit-learn.
"""

import argparse
import os
import shutil
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import horovod.tensorflow as hvd

tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.INFO)  # for the hook that logs the loss


def parse_arguments():
    parser = argparse.ArgumentParser(description="CNN on handwritten digits, TensorFlow 1 with Horovod")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the training data (default 20)")
    parser.add_argument(
        "--batch-size", type=int, default=32, help="samples per process and step (default 32)"
    )
    parser.add_argument(
        "--lr", type=float, default=0.001, help="learning rate for one process (default 0.001)"
    )
    parser.add_argument("--seed", type=int, default=42, help="for the split and the weights (default 42)")
    parser.add_argument(
        "--output", type=Path, default=Path("out"), help="folder for the results (default ./out)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on from the last checkpoint in the output folder"
    )
    arguments = parser.parse_args()
    if arguments.epochs < 1 or arguments.batch_size < 1:
        parser.error("--epochs and --batch-size must be at least 1")
    return arguments


def load_data(seed):
    """(train images, test images, train labels, test labels): float32 (N, 8, 8, 1) in 0..1, int64 (N,)."""
    digits = load_digits()
    images = digits.images[..., np.newaxis].astype(np.float32) / 16.0
    labels = digits.target.astype(np.int64)
    return train_test_split(images, labels, test_size=0.2, stratify=labels, random_state=seed)


def batches(images, labels, size, seed):
    """Batches of this process's share for ever, in another order in every pass."""
    generator = np.random.default_rng(seed)
    while True:
        order = generator.permutation(len(images))
        for start in range(0, len(images) - size + 1, size):
            chosen = order[start : start + size]
            yield images[chosen], labels[chosen]


def convolution(inputs, name, channels):
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [3, 3, inputs.shape[-1], channels])
        bias = tf.get_variable("bias", [channels], initializer=tf.zeros_initializer())
        return tf.nn.relu(tf.nn.conv2d(inputs, kernel, strides=[1, 1, 1, 1], padding="SAME") + bias)


def dense(inputs, name, units):
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [inputs.shape[-1], units])
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
        return tf.matmul(inputs, kernel) + bias


def digits_net(images, drop_rate):
    """Two convolutions and two dense layers: (N, 8, 8, 1) images to (N, 10) logits."""
    x = convolution(images, "conv1", 16)
    x = tf.nn.max_pool2d(convolution(x, "conv2", 32), ksize=2, strides=2, padding="VALID")
    x = tf.nn.dropout(tf.reshape(x, [-1, 4 * 4 * 32]), rate=drop_rate)
    x = tf.nn.dropout(tf.nn.relu(dense(x, "dense1", 64)), rate=drop_rate)
    return dense(x, "dense2", 10)


def session_config():
    """Each process takes one GPU, where there are any, and its part of the host's cores."""
    config = tf.ConfigProto()
    config.gpu_options.allow_growth = True
    config.gpu_options.visible_device_list = str(hvd.local_rank())
    config.intra_op_parallelism_threads = max(1, len(os.sched_getaffinity(0)) // hvd.local_size())
    return config


def main():
    """Returns the trained weights, one array for each variable."""
    arguments = parse_arguments()
    hvd.init()

    train_x, test_x, train_y, test_y = load_data(arguments.seed)
    mine = slice(hvd.rank(), None, hvd.size())
    feed = batches(train_x[mine], train_y[mine], arguments.batch_size, arguments.seed + hvd.rank())

    tf.set_random_seed(arguments.seed)
    images = tf.placeholder(tf.float32, [None, 8, 8, 1], name="images")
    labels = tf.placeholder(tf.int64, [None], name="labels")
    drop_rate = tf.placeholder_with_default(0.3, [], name="drop_rate")
    logits = digits_net(images, drop_rate)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    correct = tf.reduce_sum(tf.cast(tf.equal(tf.argmax(logits, axis=1), labels), tf.float32))

    # The effective batch is size() times larger, and so is the rate. The optimizer averages all gradients.
    optimizer = hvd.DistributedOptimizer(tf.train.AdamOptimizer(arguments.lr * hvd.size()))
    global_step = tf.train.get_or_create_global_step()
    train_op = optimizer.minimize(loss, global_step=global_step)

    # Run once, when training ends: every process has counted its part of the test set.
    totals = {
        "accuracy": hvd.allreduce(correct, name="test_correct", op=hvd.Sum) / len(test_x),
        "step": global_step,
        "weights": tf.trainable_variables(),
    }
    final = tf.train.FinalOpsHook(totals, {images: test_x[mine], labels: test_y[mine], drop_rate: 0.0})

    # Steps are shared out: more processes take fewer steps each.
    last_step = arguments.epochs * len(train_x) // (arguments.batch_size * hvd.size())
    hooks = [
        hvd.BroadcastGlobalVariablesHook(0),  # the same weights everywhere, also from a checkpoint of rank 0
        tf.train.StopAtStepHook(last_step=last_step),
        final,
    ]
    # Rank 0 alone reads and writes files, and talks.
    checkpoints = None
    if hvd.rank() == 0:
        checkpoints = arguments.output / "tensorflow1"
        if not arguments.resume:
            shutil.rmtree(checkpoints, ignore_errors=True)
        checkpoints.mkdir(parents=True, exist_ok=True)
        hooks.append(tf.train.LoggingTensorHook({"step": global_step, "loss": loss}, every_n_iter=100))

    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=checkpoints and str(checkpoints), hooks=hooks, config=session_config()
    ) as session:
        while not session.should_stop():
            batch_x, batch_y = next(feed)
            session.run(train_op, feed_dict={images: batch_x, labels: batch_y})

    results = final.final_ops_values
    if hvd.rank() == 0:
        print(f"results: {tf.train.latest_checkpoint(str(checkpoints))}", flush=True)
        print(
            f"test accuracy {100 * results['accuracy']:.2f} % after step {results['step']} "
            f"({hvd.size()} process(es))",
            flush=True,
        )
    hvd.shutdown()
    return results["weights"]


if __name__ == "__main__":
    main()
