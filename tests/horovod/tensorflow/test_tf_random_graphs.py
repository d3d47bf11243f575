"""Random graphs of Horovod's and ordinary operations, with constants, duplicates and unused results. Each rank lets
TensorFlow optimize them differently. HVD_TEST_TF_GRAPHS is the number of graphs.

A graph is a list of steps that is the same on all ranks, since it comes from a seed. It is computed twice: by TensorFlow,
and by NumPy for all ranks. If one rank folded, merged, dropped or delayed a call that another rank makes, a value would
be wrong or the job would hang.
"""

import os
import random

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow import mpi_ops
from tf_support import near

pytestmark = [
    pytest.mark.ranks(2, framework="tensorflow"),
    pytest.mark.ranks(
        3, framework="tensorflow", id="200-graphs", process_env={"HVD_TEST_TF_GRAPHS": "200"}, slow=True
    ),
]

v1 = tf.compat.v1

GRAPHS = int(os.environ.get("HVD_TEST_TF_GRAPHS", "28"))
COLLECTIVES = ("sum", "average", "max", "broadcast", "gather", "scatter", "group", "exchange")
ORDINARY = ("constant", "add", "halve", "identity", "zero", "again", "branch", "unused")
OPTIMIZERS = (
    *("constant_folding", "arithmetic_optimization", "dependency_optimization", "function_optimization"),
    *(
        "shape_optimization",
        "remapping",
        "loop_optimization",
        "common_subgraph_elimination",
        "layout_optimizer",
    ),
    *("debug_stripper", "scoped_allocator_optimization", "disable_model_pruning"),
)


def shape():
    return 2 * hvd.size(), 2


def steps_of(dice, met):
    """Steps: (kind, first operand, second operand, number). An operand is a place in the list of values, which begins
    with the input.

    met: the pairs (kind of the first operand, kind) of earlier graphs. Other pairs are taken first, so that few graphs
        have nearly all of them.
    """
    kinds = [dice.choice(COLLECTIVES) for _ in range(dice.randint(3, 7))]
    kinds += [dice.choice(ORDINARY) for _ in range(dice.randint(3, 9))]
    dice.shuffle(kinds)
    made, steps = ["input"], []
    for kind in kinds:
        new = [place for place, maker in enumerate(made) if (maker, kind) not in met]
        first = dice.choice(new or range(len(made)))
        met.add((made[first], kind))
        steps.append((kind, first, dice.randrange(len(made)), dice.randint(1, 4)))
        made += [kind] * (2 if kind == "group" else 1)
    return steps


def in_tensorflow(steps, x):
    values = [x]
    for kind, first, second, number in steps:
        a, b = values[first], values[second]
        if kind == "constant":
            values.append(tf.fill(shape(), tf.constant(float(number), tf.float64)))
        elif kind == "add":
            values.append((a + b) * 0.5)
        elif kind == "halve":
            values.append(a * 0.5)
        elif kind == "identity":
            values.append(tf.identity(a))
        elif kind == "zero":
            values.append(a * 0.0 + b)
        elif kind == "again":  # a duplicate, which an optimizer would merge
            values.append(
                (mpi_ops._allreduce(a, op=hvd.Average) + mpi_ops._allreduce(a, op=hvd.Average)) * 0.5
            )
        elif kind == "branch":
            # An average, so that all ranks take the same branch.
            total = mpi_ops._allreduce(tf.reduce_sum(b), op=hvd.Average)
            values.append(
                tf.cond(total > 0, lambda a=a: mpi_ops._allreduce(a, op=hvd.Average), lambda a=a: a)
            )
        elif kind == "unused":
            mpi_ops._allreduce(a)
            values.append(b)
        elif kind == "sum":
            values.append(mpi_ops._allreduce(a) / hvd.size())
        elif kind == "average":
            values.append(mpi_ops._allreduce(a, op=hvd.Average, prescale_factor=0.5, postscale_factor=2.0))
        elif kind == "max":
            values.append(mpi_ops._allreduce(a, op=hvd.Max))
        elif kind == "broadcast":
            values.append(hvd.broadcast(a, number % hvd.size()))
        elif kind == "gather":
            values.append(tf.reduce_mean(tf.reshape(hvd.allgather(a), (hvd.size(), *shape())), 0))
        elif kind == "scatter":
            values.append(tf.tile(mpi_ops._reducescatter(a, op=hvd.Average), (hvd.size(), 1)))
        elif kind == "group":
            values += mpi_ops._grouped_allreduce([a, b], op=hvd.Average)
        elif kind == "exchange":
            values.append(hvd.alltoall(a))
    return values[1:]


def in_numpy(steps, inputs):
    """The values of all steps in NumPy: a list, each element of which has one array for each rank."""
    values = [inputs]

    def average(a):
        return [np.mean(a, axis=0)] * hvd.size()

    for kind, first, second, number in steps:
        a, b = values[first], values[second]
        if kind == "constant":
            values.append([np.full(shape(), float(number))] * hvd.size())
        elif kind == "add":
            values.append([(x + y) * 0.5 for x, y in zip(a, b)])
        elif kind == "halve":
            values.append([x * 0.5 for x in a])
        elif kind == "identity":
            values.append(a)
        elif kind in ("zero", "unused"):
            values.append(b)
        elif kind in ("again", "sum", "average", "gather"):
            values.append(average(a))
        elif kind == "branch":
            values.append(average(a) if np.mean([x.sum() for x in b]) > 0 else a)
        elif kind == "max":
            values.append([np.max(a, axis=0)] * hvd.size())
        elif kind == "broadcast":
            values.append([a[number % hvd.size()]] * hvd.size())
        elif kind == "scatter":
            parts = np.split(np.mean(a, axis=0), hvd.size())
            values.append([np.tile(part, (hvd.size(), 1)) for part in parts])
        elif kind == "group":
            values += [average(a), average(b)]
        elif kind == "exchange":
            values.append(
                [np.concatenate([np.split(x, hvd.size())[r] for x in a]) for r in range(hvd.size())]
            )
    return values[1:]


def settings(dice):
    """Set how TensorFlow optimizes the next graph on this rank."""
    chosen = {name: dice.random() < 0.5 for name in OPTIMIZERS}
    return {**chosen, "min_graph_nodes": -1, "disable_meta_optimizer": dice.random() < 0.15}


def run_as_function(steps, x, own):
    tf.config.optimizer.set_experimental_options(settings(own))
    tf.config.optimizer.set_jit("autoclustering" if own.random() < 0.1 else False)
    function = tf.function(lambda x: in_tensorflow(steps, x), autograph=False)
    return [function(tf.constant(x)) for _ in range(2)]


def run_as_graph(steps, x, own):
    with tf.Graph().as_default():
        holder = v1.placeholder(tf.float64, shape())
        fetches = in_tensorflow(steps, holder)
        config = v1.ConfigProto(inter_op_parallelism_threads=own.choice((1, 2, 4)))
        rewrites = config.graph_options.rewrite_options
        for name in ("constant_folding", "common_subgraph_elimination", "function_optimization", "remapping"):
            setattr(rewrites, name, own.choice((1, 2, 3)))  # ON, OFF, AGGRESSIVE
        rewrites.disable_meta_optimizer = own.random() < 0.3
        with v1.Session(config=config) as session:
            return [session.run(fetches, {holder: x}) for _ in range(2)]


def test_random_graphs():
    before = tf.config.optimizer.get_experimental_options()
    different, met, kinds = 0, set(), {run_as_graph: set(), run_as_function: set()}
    for seed in range(GRAPHS):
        steps = steps_of(random.Random(seed), met)
        own = random.Random(1000 * seed + hvd.rank())
        inputs = [np.random.RandomState(97 * seed + r).uniform(-1, 1, shape()) for r in range(hvd.size())]
        wanted = [value[hvd.rank()] for value in in_numpy(steps, inputs)]
        run = run_as_graph if seed % 4 == 3 else run_as_function
        kinds[run].update(step[0] for step in steps)
        for found in run(steps, inputs[hvd.rank()], own):
            assert len(found) == len(wanted), (seed, len(found), len(wanted))
            for place, (value, right) in enumerate(zip(found, wanted)):
                try:
                    near(value, right, 1e-12)
                except AssertionError as error:
                    raise AssertionError(f"graph {seed}, value {place} of {steps}: {error}") from error
        options = [settings(random.Random(1000 * seed + r)) for r in range(hvd.size())]
        different += any(option != options[0] for option in options)
    tf.config.optimizer.set_jit(False)
    tf.config.optimizer.set_experimental_options({name: before.get(name, True) for name in OPTIMIZERS[:6]})
    assert different > 0.9 * GRAPHS, different
    every = {*COLLECTIVES, *ORDINARY}
    assert all(found == every for found in kinds.values()), kinds
    assert len(met) > 0.85 * (len(every) + 1) * len(every), len(met)
