"""Train a small CNN on scikit-learn's handwritten digits with Flax (nnx) on JAX.

    horovodrun -np 2 python examples/flax_digits.py
    python examples/flax_digits.py                                   # one process

Beside a program for one process there are five lines: init(), the rank's part of the data, the weights of rank 0, the
optimizer, and files that rank 0 alone writes. The weights lie in ./out/flax (--output). Needs flax, optax and
scikit-learn.
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # horovod.jax works on arrays in host memory
import jax
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import horovod.jax as hvd


def parse_arguments():
    parser = argparse.ArgumentParser(description="CNN on handwritten digits, Flax with Horovod")
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


class Cnn(nnx.Module):
    """Two convolutions and two dense layers."""

    def __init__(self, rngs):
        self.conv1 = nnx.Conv(1, 16, (3, 3), rngs=rngs)
        self.conv2 = nnx.Conv(16, 32, (3, 3), rngs=rngs)
        self.dense1 = nnx.Linear(512, 64, rngs=rngs)
        self.dense2 = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, images):
        """(N, 8, 8, 1) images to (N, 10) scores."""
        x = nnx.relu(self.conv2(nnx.relu(self.conv1(images))))
        x = nnx.max_pool(x, (2, 2), strides=(2, 2))
        return self.dense2(nnx.relu(self.dense1(x.reshape(len(x), -1))))


def loss_of(model, images, labels):
    return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()


@nnx.jit
def step(model, optimizer, images, labels):
    loss, gradients = nnx.value_and_grad(loss_of)(model, images, labels)
    optimizer.update(model, gradients)  # averages over all processes
    return loss


def load_data(seed):
    """(train images, test images, train labels, test labels): float32 (N, 8, 8, 1) in 0..1, int32 (N,)."""
    digits = load_digits()
    images = digits.images[..., np.newaxis].astype(np.float32) / 16.0
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

    model = Cnn(nnx.Rngs(arguments.seed + hvd.rank()))
    # All processes begin with the weights of rank 0.
    nnx.update(model, hvd.broadcast_parameters(nnx.state(model), root_rank=0))
    # The effective batch is size() times larger.
    optimizer = nnx.Optimizer(
        model, hvd.DistributedGradientTransformation(optax.adam(arguments.lr * hvd.size())), wrt=nnx.Param
    )

    random = np.random.default_rng(arguments.seed + hvd.rank())
    for epoch in range(arguments.epochs):
        order = random.permutation(share)
        losses = []
        for i in range(max(1, share // arguments.batch_size)):
            batch = order[i * arguments.batch_size : (i + 1) * arguments.batch_size]
            losses.append(step(model, optimizer, train_x[batch], train_y[batch]))
        loss = hvd.allreduce(np.float32(np.mean(losses)), name="loss")
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1:2d}  loss {float(loss):.4f}", flush=True)

    # Every process counts over its part of the test set.
    guesses = nnx.jit(lambda model, images: model(images))(model, test_x[hvd.rank() :: hvd.size()]).argmax(1)
    correct = (guesses == test_y[hvd.rank() :: hvd.size()]).sum()
    correct = int(hvd.allreduce(correct, op=hvd.Sum, name="correct"))
    paths = jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    weights = {".".join(str(key.key) for key in path): np.asarray(value) for path, value in paths}
    if hvd.rank() == 0:  # rank 0 alone writes files
        folder = arguments.output / "flax"
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / "digits.npz", **weights)
        print(f"results: {folder / 'digits.npz'}", flush=True)
        print(
            f"test accuracy {100 * correct / len(test_y):.2f} % ({hvd.size()} process(es), JAX {jax.__version__})",
            flush=True,
        )
    hvd.shutdown()
    return list(weights.values())


if __name__ == "__main__":
    main()
