"""Train a small CNN on scikit-learn's handwritten digits with Equinox on JAX.

    horovodrun -np 2 python examples/equinox_digits.py
    python examples/equinox_digits.py                                # one process

Beside a program for one process there are five lines: init(), the rank's part of the data, the weights of rank 0, the
optimizer, and files that rank 0 alone writes. The model lies in ./out/equinox (--output). Needs equinox, optax and
scikit-learn.
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # horovod.jax works on arrays in host memory
import equinox as eqx
import jax
import numpy as np
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import horovod.jax as hvd


def parse_arguments():
    parser = argparse.ArgumentParser(description="CNN on handwritten digits, Equinox with Horovod")
    parser.add_argument("--epochs", type=int, default=15, help="passes over the training data (default 15)")
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
    arguments = parser.parse_args()
    if arguments.epochs < 1 or arguments.batch_size < 1:
        parser.error("--epochs and --batch-size must be at least 1")
    return arguments


def make_model(key):
    """Two convolutions and two dense layers: one (1, 8, 8) image to 10 scores."""
    keys = jax.random.split(key, 4)
    return eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(1, 16, 3, padding=1, key=keys[0]),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Conv2d(16, 32, 3, padding=1, key=keys[1]),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.MaxPool2d(2, 2),
            eqx.nn.Lambda(lambda x: x.ravel()),
            eqx.nn.Linear(512, 64, key=keys[2]),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Linear(64, 10, key=keys[3]),
        ]
    )


def loss_of(model, images, labels):
    return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(images), labels).mean()


def load_data(seed):
    """(train images, test images, train labels, test labels): float32 (N, 1, 8, 8) in 0..1, int32 (N,)."""
    digits = load_digits()
    images = digits.images[:, np.newaxis].astype(np.float32) / 16.0
    labels = digits.target.astype(np.int32)
    return train_test_split(images, labels, test_size=0.2, stratify=labels, random_state=seed)


def main():
    """Returns the trained weights, one array for each parameter."""
    arguments = parse_arguments()
    hvd.init()
    train_x, test_x, train_y, test_y = load_data(arguments.seed)
    share = len(train_x) // hvd.size()  # the same number of steps on all processes
    mine = slice(hvd.rank(), share * hvd.size(), hvd.size())
    train_x, train_y = train_x[mine], train_y[mine]

    # All processes begin with the weights of rank 0.
    model = hvd.broadcast_parameters(make_model(jax.random.key(arguments.seed + hvd.rank())), root_rank=0)
    # The effective batch is size() times larger.
    optimizer = hvd.DistributedGradientTransformation(optax.adam(arguments.lr * hvd.size()))
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def step(model, state, images, labels):
        loss, gradients = eqx.filter_value_and_grad(loss_of)(model, images, labels)
        # This averages over all processes.
        updates, state = optimizer.update(gradients, state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), state, loss

    random = np.random.default_rng(arguments.seed + hvd.rank())
    for epoch in range(arguments.epochs):
        order = random.permutation(share)
        losses = []
        for i in range(max(1, share // arguments.batch_size)):
            batch = order[i * arguments.batch_size : (i + 1) * arguments.batch_size]
            model, state, loss = step(model, state, train_x[batch], train_y[batch])
            losses.append(loss)
        loss = hvd.allreduce(np.float32(np.mean(losses)), name="loss")
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1:2d}  loss {float(loss):.4f}", flush=True)

    # Every process counts over its part of the test set.
    scores = eqx.filter_jit(lambda model, images: jax.vmap(model)(images))(
        model, test_x[hvd.rank() :: hvd.size()]
    )
    correct = (scores.argmax(axis=1) == test_y[hvd.rank() :: hvd.size()]).sum()
    correct = int(hvd.allreduce(correct, op=hvd.Sum, name="correct"))
    if hvd.rank() == 0:  # rank 0 alone writes files
        folder = arguments.output / "equinox"
        folder.mkdir(parents=True, exist_ok=True)
        eqx.tree_serialise_leaves(folder / "digits.eqx", model)
        print(f"results: {folder / 'digits.eqx'}", flush=True)
        print(
            f"test accuracy {100 * correct / len(test_y):.2f} % ({hvd.size()} process(es), JAX {jax.__version__})",
            flush=True,
        )
    hvd.shutdown()
    return [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(eqx.filter(model, eqx.is_inexact_array))]


if __name__ == "__main__":
    main()
