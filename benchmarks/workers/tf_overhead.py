"""A rank of benchmarks/tensorflow_overhead.py: single operations, groups, and training steps with and without us.

All ways are in the same processes and take turns, run after run; each sleeps while the other works. Rank 0 writes the
figures as JSON into the file that is named on the command line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd
import hvd_core
from harness.shapes import resnet50
from workers.tf_models import (
    MODELS,
    Alone,
    Ours,
    OursGrouped,
    ThroughNumpy,
    Trainer,
    pictures,
    small_cnn,
)

CHAIN = 20
SIZES = {"4 B": 1, "64 KiB": 16 << 10, "4 MiB": 1 << 20}


def timed(call: Callable[[], object], repeat: int) -> float:
    """Seconds of one call."""
    call()
    hvd_core.barrier()
    begin = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - begin) / repeat


def in_turns(ways: dict[str, Callable[[], float]], runs: int) -> dict[str, list[float]]:
    """{way: figure of each run}. The alternative that begins changes from run to run."""
    figures: dict[str, list[float]] = {name: [] for name in ways}
    order = list(ways)
    for run in range(runs):
        for name in order[run % len(order) :] + order[: run % len(order)]:
            hvd_core.barrier()
            figures[name].append(ways[name]())
    return figures


def reduce_array(array) -> np.ndarray:
    return hvd_core.allreduce(np.asarray(array), op=hvd_core.Sum, name="through_python")


def python_op(face: Callable, x: tf.Tensor) -> tf.Tensor:
    out = face(reduce_array, [x], x.dtype)
    out.set_shape(x.shape)
    return out


# How one tensor is reduced.
OPS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "ours": lambda x: hvd.allreduce(x, op=hvd.Sum, name="one"),
    "numpy_function": lambda x: python_op(tf.numpy_function, x),
    "py_function": lambda x: python_op(tf.py_function, x),
    "x * 0.5": lambda x: x * 0.5,
}


def operations(runs: int) -> dict:
    """{size: {"way, mode": seconds of one op, for each run}}; in functions, of one of a chain."""
    result = {}
    for size, count in SIZES.items():
        tensor = tf.ones([count])
        array = np.ones(count, np.float32)
        repeat = 100 if count < 1 << 20 else 10
        ways = {"NumPy API": lambda a=array, n=repeat: timed(lambda: reduce_array(a), n)}
        for name, op in OPS.items():

            @tf.function
            def chain(x, op=op):
                for _ in range(CHAIN):
                    x = op(x) * 0.5
                return x

            ways[f"{name}, eager"] = lambda op=op, x=tensor, n=repeat: timed(lambda: op(x), n)
            ways[f"{name}, function"] = lambda f=chain, x=tensor, n=repeat: (
                timed(lambda: f(x).numpy(), max(3, n // CHAIN)) / CHAIN
            )

        @tf.function(jit_compile=True)
        def compiled(x):
            for _ in range(CHAIN):
                x = OPS["ours"](x) * 0.5
            return x

        ways["ours, jit"] = lambda f=compiled, x=tensor, n=repeat: (
            timed(lambda: f(x).numpy(), max(3, n // CHAIN)) / CHAIN
        )
        result[size] = in_turns(ways, runs)
    return result


def groups(runs: int) -> dict:
    """{shapes: {way: seconds for all of them, for each run}}, in a tf.function without gradients."""
    cases = {"161 of 256 B": [(64,)] * 161, "resnet50": resnet50(), "1000 of 4 B": [(1,)] * 1000}
    result = {}
    for case, shapes in cases.items():
        tensors = [tf.fill(shape, 1.0 + hvd.rank()) for shape in shapes]

        @tf.function
        def single(tensors=tensors):
            return [hvd.allreduce(x, op=hvd.Sum, name=f"single.{i}") for i, x in enumerate(tensors)]

        @tf.function
        def grouped(tensors=tensors):
            return hvd.grouped_allreduce(tensors, op=hvd.Sum, name="grouped")

        @tf.function
        def one(tensors=tensors):
            return hvd.allreduce(
                tf.concat([tf.reshape(x, [-1]) for x in tensors], 0), op=hvd.Sum, name="joined"
            )

        def finish(out) -> None:
            (out[-1] if isinstance(out, list) else out[:1]).numpy()

        ways = {"single": single, "grouped": grouped, "concatenated": one}
        repeat = 3 if case == "resnet50" else 20
        result[case] = in_turns(
            {
                name: lambda f=function, n=repeat: timed(lambda: finish(f()), n)
                for name, function in ways.items()
            },
            runs,
        )
    return result


def step_times(trainer: Trainer, steps: int) -> tuple[float, float]:
    """Median seconds of a step, after one that is not timed, and the processor's seconds per step of this process."""
    trainer.step()
    hvd_core.barrier()
    times = []
    spent = time.process_time()
    for _ in range(steps):
        begin = time.perf_counter()
        trainer.step()
        times.append(time.perf_counter() - begin)
    return statistics.median(times), (time.process_time() - spent) / steps


def steps(model: str, jit: bool, runs: int) -> dict:
    """{way: (seconds, processor's seconds) of a step, for each run}."""
    count = MODELS[model][1]
    kinds = {"ours": Ours, "ours, one group": OursGrouped, "alone": Alone}
    if not jit:
        kinds["numpy_function"] = ThroughNumpy  # XLA does not know it
    ways = {name: kind(model, jit) for name, kind in kinds.items()}
    for trainer in ways.values():
        for _ in range(3):
            trainer.step()
    if not jit:
        for mine, theirs in zip(ways["ours"].result(), ways["numpy_function"].result()):
            if not np.allclose(mine, theirs, rtol=1e-4, atol=1e-6):
                raise SystemExit(f"{model}: our weights and those of numpy_function differ")
    return in_turns({name: lambda t=trainer: step_times(t, count) for name, trainer in ways.items()}, runs)


class Clock(tf.keras.callbacks.Callback):
    """Seconds from the end of a batch to the end of the next."""

    def __init__(self) -> None:
        super().__init__()
        self.stamps: list[float] = []

    def on_train_batch_end(self, batch, logs=None) -> None:
        self.stamps.append(time.perf_counter())

    def median(self) -> float:
        return statistics.median(b - a for a, b in zip(self.stamps[3:], self.stamps[4:]))


def fit(runs: int) -> dict:
    """{way: seconds of a batch in model.fit, for each run}, for the small network."""
    import horovod.tensorflow.keras as hvd_keras

    data = tf.data.Dataset.from_tensors(pictures()).repeat()
    models = {}
    for name in ("ours", "alone"):
        model = small_cnn()
        optimizer = tf.keras.optimizers.SGD(1e-3)
        if name == "ours":
            optimizer = hvd_keras.DistributedOptimizer(optimizer)
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss)
        models[name] = model

    def run(model) -> float:
        clock = Clock()
        model.fit(data, steps_per_epoch=40, epochs=1, verbose=0, callbacks=[clock])
        return clock.median()

    return in_turns({name: lambda m=model: run(m) for name, model in models.items()}, runs)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("result")
    parser.add_argument("--runs", type=int)
    parser.add_argument("--parts")
    parser.add_argument("--models")
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    hvd.init()
    parts = options.parts.split(",")
    result: dict = {"tensorflow": tf.__version__}
    if "ops" in parts:
        result["ops"] = operations(options.runs)
    if "groups" in parts:
        result["groups"] = groups(options.runs)
    if "steps" in parts:
        result["steps"] = {}
        for model in options.models.split(","):
            for mode, jit in (("function", False), ("jit", True)):
                result["steps"][f"{model}, {mode}"] = steps(model, jit, options.runs)
    if "fit" in parts:
        result["fit"] = fit(options.runs)
    if hvd.rank() == 0:
        with open(options.result, "w") as out:
            json.dump(result, out)
    hvd.shutdown()


if __name__ == "__main__":
    main()
