"""Train a small CNN on scikit-learn's handwritten digits with JAX and optax.

    horovodrun -np 2 python examples/jax_digits.py
    python examples/jax_digits.py                                    # one process

Written with Horovod's public API only. Each step is one compiled program. The weights lie in ./out/jax (--output). Needs
jax, optax and scikit-learn.
"""

import argparse
import functools
import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # horovod.jax works on arrays in host memory
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import horovod.jax as hvd


def parse_arguments():
    parser = argparse.ArgumentParser(description="CNN on handwritten digits, JAX with Horovod")
    parser.add_argument("--epochs", type=int, default=15, help="passes over the training data (default 15)")
    parser.add_argument(
        "--batch-size", type=int, default=32, help="samples per process and step (default 32)"
    )
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate for one process (default 0.02)")
    parser.add_argument("--bf16-allreduce", action="store_true", help="send gradients as bfloat16")
    parser.add_argument("--seed", type=int, default=42, help="for the split and the weights (default 42)")
    parser.add_argument(
        "--output", type=Path, default=Path("out"), help="folder for the results (default ./out)"
    )
    arguments = parser.parse_args()
    if arguments.epochs < 1 or arguments.batch_size < 1:
        parser.error("--epochs and --batch-size must be at least 1")
    return arguments


def load_data(seed):
    """(train images, test images, train labels, test labels): float32 (N, 8, 8, 1) in 0..1, int32 (N,)."""
    digits = load_digits()
    images = digits.images[..., np.newaxis].astype(np.float32) / 16.0
    labels = digits.target.astype(np.int32)
    return train_test_split(images, labels, test_size=0.2, stratify=labels, random_state=seed)


def make_params(key):
    """Two convolutions and two dense layers: kernels with the variance of their inputs, biases of zeros."""
    shapes = {"conv1": (3, 3, 1, 16), "conv2": (3, 3, 16, 32), "dense1": (512, 64), "dense2": (64, 10)}
    initializer = jax.nn.initializers.he_normal()
    keys = jax.random.split(key, len(shapes))
    return {
        name: {"kernel": initializer(k, shape), "bias": jnp.zeros(shape[-1])}
        for k, (name, shape) in zip(keys, shapes.items())
    }


def scores_of(params, images):
    """(N, 8, 8, 1) images to (N, 10) scores."""
    x = images
    for name in ("conv1", "conv2"):
        kernel = params[name]["kernel"]
        x = jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x + params[name]["bias"])
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = x.reshape(len(x), -1)
    x = jax.nn.relu(x @ params["dense1"]["kernel"] + params["dense1"]["bias"])
    return x @ params["dense2"]["kernel"] + params["dense2"]["bias"]


def loss_of(params, images, labels):
    return optax.softmax_cross_entropy_with_integer_labels(scores_of(params, images), labels).mean()


def main():
    """Returns the trained weights, one array for each parameter."""
    arguments = parse_arguments()
    hvd.init()
    train_x, test_x, train_y, test_y = load_data(arguments.seed)
    share = len(train_x) // hvd.size()  # the same number of steps on all processes
    mine = slice(hvd.rank(), share * hvd.size(), hvd.size())
    train_x, train_y = train_x[mine], train_y[mine]
    steps = max(1, share // arguments.batch_size)

    rate = arguments.lr * hvd.size()  # the effective batch is size() times larger
    schedule = optax.warmup_cosine_decay_schedule(
        rate / hvd.size(), rate, 2 * steps, max(3, arguments.epochs) * steps, rate / 100
    )
    optimizer = hvd.DistributedGradientTransformation(
        optax.sgd(schedule, momentum=0.9),
        compression=hvd.Compression.bf16 if arguments.bf16_allreduce else hvd.Compression.none,
    )
    # All processes begin with the weights of rank 0.
    params = hvd.broadcast_parameters(make_params(jax.random.key(arguments.seed + hvd.rank())), root_rank=0)
    state = optimizer.init(params)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, images, labels):
        loss, gradients = jax.value_and_grad(loss_of)(params, images, labels)
        updates, state = optimizer.update(gradients, state, params)  # averages over all processes
        return optax.apply_updates(params, updates), state, loss

    random = np.random.default_rng(arguments.seed + hvd.rank())
    for epoch in range(arguments.epochs):
        order = random.permutation(share)
        losses = []
        for i in range(steps):
            batch = order[i * arguments.batch_size : (i + 1) * arguments.batch_size]
            params, state, loss = step(params, state, train_x[batch], train_y[batch])
            losses.append(loss)
        loss = hvd.allreduce(jnp.stack(losses).mean(), name="loss")
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1:2d}  loss {float(loss):.4f}", flush=True)

    # Every process counts over its part of the test set.
    guesses = jax.jit(scores_of)(params, test_x[hvd.rank() :: hvd.size()]).argmax(axis=1)
    correct = (guesses == test_y[hvd.rank() :: hvd.size()]).sum()
    correct = int(hvd.allreduce(correct, op=hvd.Sum, name="correct"))
    names = [(name, kind) for name in sorted(params) for kind in ("kernel", "bias")]
    weights = [np.asarray(params[name][kind]) for name, kind in names]
    if hvd.rank() == 0:  # rank 0 alone writes files
        folder = arguments.output / "jax"
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / "digits.npz", **{f"{n}.{k}": w for (n, k), w in zip(names, weights)})
        print(f"results: {folder / 'digits.npz'}", flush=True)
        print(
            f"test accuracy {100 * correct / len(test_y):.2f} % ({hvd.size()} process(es), JAX {jax.__version__})",
            flush=True,
        )
    hvd.shutdown()
    return weights


if __name__ == "__main__":
    main()
