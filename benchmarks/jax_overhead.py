#!/usr/bin/env python3
"""The cost of hvd-core in JAX: one operation in a program, many gradients, a training step.

    horovodrun -np 2 python benchmarks/jax_overhead.py [--runs 7]

All ways are in the same processes and take turns. Medians of the turns; rank 0 prints a table, and at the end what the
goals are about. Ratios are formed within a turn.

ops: one allreduce in a compiled program, beside the same allreduce of our NumPy API outside of it, in a
jax.pure_callback, and in mpi4jax if that is installed (then start the ranks with mpirun).
gradients: 100 arrays of 16 KiB in one program: one by one, as a tree, concatenated, in one callback.
overlap: an allreduce of 4 MiB and matrix products that do not depend on it, in one program, beside each by itself.
steps: SGD on a perceptron and on a small transformer, beside the same step without communication ("alone").
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import statistics
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
import jax
import jax.numpy as jnp
import numpy as np

import horovod.jax as hvd
import hvd_core


def numpy_of(function, *arrays):
    """A callback: the function of our NumPy API on the values."""
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]
    return jax.pure_callback(lambda *xs: tuple(function([np.asarray(x) for x in xs])), shapes, *arrays)


def operations(size: int) -> dict:
    """{way: a function that makes one allreduce of so many float32 and waits for it}."""
    x, host = jnp.ones(size, jnp.float32), np.ones(size, np.float32)
    ways = {
        "no operation": jax.jit(lambda x: x + 1),
        "handler": jax.jit(lambda x: hvd.allreduce(x, name="one")),
        "pure_callback": jax.jit(
            lambda x: numpy_of(lambda xs: [hvd_core.allreduce(xs[0], name="call")], x)[0]
        ),
    }
    if importlib.util.find_spec("mpi4jax"):
        import mpi4jax
        from mpi4py import MPI

        ways["mpi4jax"] = jax.jit(lambda x: mpi4jax.allreduce(x, op=MPI.SUM, comm=MPI.COMM_WORLD))
    calls = {name: lambda f=f: jax.block_until_ready(f(x)) for name, f in ways.items()}
    calls["NumPy API, no program"] = lambda: hvd_core.allreduce(host, name="numpy")
    return calls


def gradients() -> dict:
    tree = {f"p{i}": jnp.ones((64, 64), jnp.float32) for i in range(100)}

    def concatenated(tree):
        leaves, structure = jax.tree_util.tree_flatten(tree)
        flat = hvd.allreduce(jnp.concatenate([leaf.ravel() for leaf in leaves]), name="flat")
        parts = jnp.split(flat, len(leaves))
        return jax.tree_util.tree_unflatten(structure, [p.reshape(64, 64) for p in parts])

    def called_back(tree):
        leaves, structure = jax.tree_util.tree_flatten(tree)
        reduced = numpy_of(lambda xs: hvd_core.grouped_allreduce(xs, name="calls"), *leaves)
        return jax.tree_util.tree_unflatten(structure, reduced)

    ways = {
        "one by one": jax.jit(lambda t: {k: hvd.allreduce(v, name=k) for k, v in t.items()}),
        "as a tree": jax.jit(lambda t: hvd.allreduce_gradients(t, name="tree")),
        "concatenated": jax.jit(concatenated),
        "pure_callback of all": jax.jit(called_back),
    }
    return {name: lambda f=f: jax.block_until_ready(f(tree)) for name, f in ways.items()}


def overlap() -> dict:
    x, a = jnp.ones(1 << 20, jnp.float32), jnp.ones((512, 512), jnp.float32) / 512

    def products(a):
        return jax.lax.fori_loop(0, 8, lambda _, b: b @ a, a)

    ways = {
        "communication": lambda x, a: hvd.allreduce(x, name="beside"),
        "computation": lambda x, a: products(a),
        "both": lambda x, a: (hvd.allreduce(x, name="beside"), products(a)),
    }
    return {name: lambda f=jax.jit(f): jax.block_until_ready(f(x, a)) for name, f in ways.items()}


def perceptron(key):
    widths = (256, 512, 512, 10)
    params = [
        jax.random.normal(k, shape) * 0.05
        for k, shape in zip(jax.random.split(key, 3), itertools.pairwise(widths))
    ]

    def loss(params, x):
        for weight in params:
            x = jnp.tanh(x @ weight)
        return (x**2).mean()

    return params, loss, jnp.ones((256, widths[0]))


def transformer(key):
    width, layers = 128, 4
    keys = iter(jax.random.split(key, 4 * layers))
    shapes = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 512), "down": (512, width)}
    params = [
        {name: jax.random.normal(next(keys), shape) * 0.05 for name, shape in shapes.items()}
        for _ in range(layers)
    ]

    def loss(params, x):
        for layer in params:
            q, k, v = jnp.split(x @ layer["qkv"], 3, axis=-1)
            attention = jax.nn.softmax(q @ k.swapaxes(-1, -2) / width**0.5)
            x = x + (attention @ v) @ layer["out"]
            x = x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]
        return (x**2).mean()

    return params, loss, jnp.ones((8, 64, width))


def steps(model) -> dict:
    params, loss, x = model(jax.random.key(0))

    def step(reduce):
        def run(params, x):
            grads = reduce(jax.grad(loss)(params, x))
            return jax.tree_util.tree_map(lambda p, g: p - 0.01 * g, params, grads)

        return jax.jit(run)

    ways = {
        "alone": step(lambda grads: grads),
        "ours": step(lambda grads: hvd.allreduce_gradients(grads, name="step")),
        "ours, one by one": step(lambda grads: hvd.allreduce_gradients(grads, name="each", bucket_bytes=1)),
    }
    return {name: lambda f=f: jax.block_until_ready(f(params, x)) for name, f in ways.items()}


def measure(calls: dict, runs: int, seconds: float = 0.15) -> dict:
    """{way: seconds per call in each of `runs` turns}."""
    counts = {}
    for name, call in calls.items():
        for _ in range(5):
            call()
        hvd.barrier()
        begin = time.perf_counter()
        for _ in range(5):
            call()
        took = (time.perf_counter() - begin) / 5
        # Equal on all ranks, which make the same number of calls.
        counts[name] = int(hvd.broadcast_object(max(3, min(2000, round(seconds / took))), 0))
    found: dict = {name: [] for name in calls}
    for _ in range(runs):
        for name, call in calls.items():
            hvd.barrier()
            begin = time.perf_counter()
            for _ in range(counts[name]):
                call()
            found[name].append((time.perf_counter() - begin) / counts[name])
    return found


def ratio(found: dict, way: str, other: str) -> float:
    """How much longer a way takes than the other, the median of the turns' ratios."""
    return statistics.median(a / b for a, b in zip(found[way], found[other]))


def print_goals(found: dict) -> None:
    """What the goals are about, from {part: {way: seconds in each turn}}."""
    one, many, both = (found[part] for part in (SMALL, GRADIENTS, OVERLAP))
    print("goals")
    print(f"  100 gradients as a tree, us, goal 500    {statistics.median(many['as a tree']) * 1e6:8.1f}")
    print(
        f"  ... beside one pure_callback of all      {ratio(many, 'as a tree', 'pure_callback of all'):8.3f}"
    )
    for part in STEPS:
        print(f"  {part}, to alone, goal 1.03".ljust(43) + f"{ratio(found[part], 'ours', 'alone'):8.3f}")
    for other in ("pure_callback", "mpi4jax"):
        if other in one:
            print(f"  allreduce of 4 B, to {other}".ljust(43) + f"{ratio(one, 'handler', other):8.3f}")
    hidden = [
        (alone + compute - together) / min(alone, compute)
        for alone, compute, together in zip(both["communication"], both["computation"], both["both"])
    ]
    print(f"  share of the shorter part that is hidden {statistics.median(hidden):8.3f}", flush=True)


SMALL, GRADIENTS, OVERLAP = "allreduce of 4 B", "100 gradients of 16 KiB", "overlap with 4 MiB"
STEPS = ("step of a perceptron", "step of a transformer")


def main() -> None:
    parser = argparse.ArgumentParser(description="the cost of hvd-core in JAX")
    parser.add_argument("--runs", type=int, default=7, help="turns (default 7)")
    runs = parser.parse_args().runs
    hvd.init()
    parts = {
        SMALL: operations(1),
        "allreduce of 1 MiB": operations(1 << 18),
        GRADIENTS: gradients(),
        OVERLAP: overlap(),
        STEPS[0]: steps(perceptron),
        STEPS[1]: steps(transformer),
    }
    results = {}
    for title, calls in parts.items():
        found = results[title] = measure(calls, runs)
        if hvd.rank() == 0:
            print(f"{title}, us, {hvd.size()} rank(s), load {os.getloadavg()[0]:.1f}")
            for name, values in found.items():
                print(f"  {name:24s} {statistics.median(values) * 1e6:10.1f}", flush=True)
    if hvd.rank() == 0:
        print_goals(results)
    hvd.shutdown()


if __name__ == "__main__":
    main()
