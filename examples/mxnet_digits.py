"""Train a small CNN on scikit-learn's handwritten digits with MXNet's Gluon.

    horovodrun -np 2 python examples/mxnet_digits.py
    python examples/mxnet_digits.py                                    # one process

Written with Horovod's public API only. The weights lie in ./out/mxnet (--output). Needs an environment with
mxnet==1.9.1, numpy<2 and scikit-learn.
"""

import argparse
from pathlib import Path

import horovod.mxnet as hvd  # before mxnet: it puts names back that MXNet needs of NumPy

import mxnet as mx  # isort: skip
import numpy as np
from mxnet import autograd, gluon
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def parse_arguments():
    parser = argparse.ArgumentParser(description="CNN on handwritten digits, MXNet with Horovod")
    parser.add_argument("--epochs", type=int, default=15, help="passes over the training data (default 15)")
    parser.add_argument(
        "--batch-size", type=int, default=32, help="samples per process and step (default 32)"
    )
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate for one process (default 0.02)")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    parser.add_argument("--seed", type=int, default=42, help="for the split and the weights (default 42)")
    parser.add_argument(
        "--output", type=Path, default=Path("out"), help="folder for the results (default ./out)"
    )
    arguments = parser.parse_args()
    if arguments.epochs < 1 or arguments.batch_size < 1:
        parser.error("--epochs and --batch-size must be at least 1")
    return arguments


def load_data(seed):
    """(train images, test images, train labels, test labels): float32 (N, 1, 8, 8) in 0..1, float32 (N,)."""
    digits = load_digits()
    images = digits.images[:, np.newaxis].astype(np.float32) / 16.0
    labels = digits.target.astype(np.float32)
    return train_test_split(images, labels, test_size=0.2, stratify=labels, random_state=seed)


def make_model():
    """Two convolutions and two dense layers: (N, 1, 8, 8) images to (N, 10) scores. Shapes are known after the first
    forward pass."""
    model = gluon.nn.HybridSequential()
    model.add(
        gluon.nn.Conv2D(16, 3, padding=1, activation="relu"),
        gluon.nn.Conv2D(32, 3, padding=1, activation="relu"),
        gluon.nn.MaxPool2D(2),
        gluon.nn.Dense(64, activation="relu"),
        gluon.nn.Dense(10),
    )
    return model


def warmup_then_decay(rate, steps_per_epoch, epochs):
    """From a fraction of the rate to all of it in at most two epochs; then down along a cosine."""
    return mx.lr_scheduler.CosineScheduler(
        max_update=steps_per_epoch * epochs,
        base_lr=rate,
        final_lr=rate / 100,
        warmup_steps=min(2, epochs // 2) * steps_per_epoch,
        warmup_begin_lr=rate / hvd.size(),
    )


def main():
    """Returns the trained weights, one array for each parameter."""
    arguments = parse_arguments()
    hvd.init()
    mx.random.seed(arguments.seed + hvd.rank())
    np.random.seed(arguments.seed + hvd.rank())

    train_x, test_x, train_y, test_y = load_data(arguments.seed)
    share = len(train_x) // hvd.size()  # the same number of steps on all processes
    mine = slice(hvd.rank(), share * hvd.size(), hvd.size())
    batches = gluon.data.DataLoader(
        gluon.data.ArrayDataset(train_x[mine], train_y[mine]),
        batch_size=arguments.batch_size,
        shuffle=True,
        last_batch="discard",
    )

    model = make_model()
    model.initialize(mx.init.Xavier())
    model.hybridize()
    parameters = model.collect_params()
    # All processes begin with the weights of rank 0: they are sent when the first batch has told the shapes.
    hvd.broadcast_parameters(parameters, root_rank=0)
    model(mx.nd.array(train_x[:1]))

    rate = arguments.lr * hvd.size()  # the effective batch is size() times larger
    schedule = warmup_then_decay(rate, len(batches), arguments.epochs)
    trainer = hvd.DistributedTrainer(
        parameters,
        "sgd",
        {"learning_rate": rate, "momentum": 0.9, "lr_scheduler": schedule},
        compression=hvd.Compression.fp16 if arguments.fp16_allreduce else hvd.Compression.none,
    )
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

    for epoch in range(arguments.epochs):
        total = mx.nd.zeros((1,))
        for images, labels in batches:
            with autograd.record():
                loss = loss_of(model(images), labels)
            loss.backward()
            trainer.step(arguments.batch_size)
            total += loss.mean()
        mean = hvd.allreduce(total / len(batches), name="loss")
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1:2d}  loss {mean.asscalar():.4f}", flush=True)

    # Every process counts over its part of the test set.
    guesses = model(mx.nd.array(test_x[hvd.rank() :: hvd.size()])).asnumpy().argmax(axis=1)
    correct = float((guesses == test_y[hvd.rank() :: hvd.size()]).sum())
    correct = hvd.allreduce(mx.nd.array([correct]), op=hvd.Sum, name="correct").asscalar()
    if hvd.rank() == 0:  # rank 0 alone writes files
        folder = arguments.output / "mxnet"
        folder.mkdir(parents=True, exist_ok=True)
        model.save_parameters(str(folder / "digits.params"))
        print(f"results: {folder / 'digits.params'}", flush=True)
        print(
            f"test accuracy {100 * correct / len(test_y):.2f} % ({hvd.size()} process(es), MXNet {mx.__version__})",
            flush=True,
        )
    weights = [parameters[name].data().asnumpy() for name in sorted(parameters)]
    hvd.shutdown()
    return weights


if __name__ == "__main__":
    main()
