"""Producer, collective and consumer on a device whose kernels are late, many times. The host does not wait in
between, memory is released at once and used again, and a wrong order gives a wrong number.

HVD_TEST_TURNS is the number of turns.
"""

import os
import random

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow import mpi_ops
from tf_device_under_test import DEVICE, NATIVE, on_device, same

pytestmark = pytest.mark.ranks(2, **NATIVE)

TURNS = int(os.environ.get("HVD_TEST_TURNS", "30"))
COUNTS = [1, 17, 1000, 40_000]


def number(value):
    return on_device(np.float32(value))


def test_at_once():
    """Each turn has other numbers, so that values that an earlier turn has left in the memory are wrong."""
    chance = random.Random(7)  # the same on all ranks
    zeros = [on_device(np.zeros(n, np.float32)) for n in COUNTS]
    mine, size = number(hvd.rank()), number(hvd.size())
    waiting = []
    with tf.device(DEVICE):
        for turn in range(4 * TURNS):
            zero, now = zeros[chance.randrange(len(zeros))], number(turn % 1000)
            made = (zero + now) * size + mine
            total = mpi_ops._allreduce(made, op=hvd.Sum, name=f"once.{turn % 7}")
            used = total - made * size
            del made, total
            rubbish = zero - number(1e9)  # is allocated in the memory that has just become free
            del rubbish
            # The result is the same on all ranks, made of different numbers: minus SIZE times this rank's number.
            waiting.append((used, sum(range(hvd.size())) - hvd.size() * hvd.rank()))
            if len(waiting) > 20:
                for used, wanted in waiting:
                    same(used, np.full(used.shape, wanted), f"turn {turn}")
                waiting.clear()


def chains(step, zeros, mine, size):
    """Many operations of all kinds, each between late kernels. They depend on the step and not on each other."""
    results = []
    for i, zero in enumerate(zeros):
        made = (zero + step) * size + mine
        total = mpi_ops._allreduce(made, op=hvd.Sum, name=f"chain.reduce.{i}")
        again = mpi_ops._allreduce(total - made, op=hvd.Sum, name=f"chain.again.{i}")
        cast = hvd.broadcast(made * made, hvd.size() - 1, name=f"chain.cast.{i}")
        rows = hvd.allgather(made + size, name=f"chain.gather.{i}")
        group = mpi_ops._grouped_allreduce([made, made + made], op=hvd.Max, name=f"chain.group.{i}")
        results.append([again + zero, cast - made, rows * size, group[0] + group[1]])
    return results


def chains_wanted(step, count):
    """The results of chains() on this rank, in float64."""
    made = [hvd.size() * step + r for r in range(hvd.size())]
    total = sum(made)
    again = sum(total - m for m in made)
    rows = np.repeat([hvd.size() * (m + hvd.size()) for m in made], count)
    single = [again, made[-1] ** 2 - made[hvd.rank()], 3 * max(made)]
    first, second, third = (np.full(count, value) for value in single)
    return [first, second, rows, third]


def test_functions():
    counts = [1, 17, 1000]
    zeros = [on_device(np.zeros(n, np.float32)) for n in counts]
    mine, size = number(hvd.rank()), number(hvd.size())

    @tf.function
    def run(step, zeros):
        with tf.device(DEVICE):
            return chains(step, zeros, mine, size)

    late = []
    for turn in range(TURNS):
        late.append((turn % 1000, run(number(turn % 1000), zeros)))
        if len(late) > 3 or turn == TURNS - 1:
            for step, results in late:
                for count, found in zip(counts, results):
                    for i, (tensor, wanted) in enumerate(zip(found, chains_wanted(step, count))):
                        same(tensor, wanted, f"step {step}, {count} elements, result {i}")
            late.clear()


def test_a_model_trains_as_in_one_process():
    """Gradients of a product of matrices, reduced on the device, and applied to variables there."""
    chance = np.random.default_rng(5)
    inputs, weights = chance.standard_normal((hvd.size() * 8, 6)), chance.standard_normal((6, 2))
    targets = inputs @ chance.standard_normal((6, 2))
    own = slice(8 * hvd.rank(), 8 * hvd.rank() + 8)
    with tf.device(DEVICE):
        variable = tf.Variable(tf.identity(tf.constant(weights * (hvd.rank() + 1))))
    hvd.broadcast_([variable], 0, name="model")
    x, y = on_device(inputs[own]), on_device(targets[own])
    rate = on_device(np.float64(0.02))

    @tf.function
    def step(x, y):
        with tf.device(DEVICE):
            gradient = tf.matmul(x, tf.matmul(x, variable.read_value()) - y, transpose_a=True)
            mean = mpi_ops._allreduce(gradient, op=hvd.Average, name="model.gradient")
            variable.assign(variable.read_value() - mean * rate)

    for _ in range(20):
        step(x, y)
        weights = weights - 0.02 / hvd.size() * inputs.T @ (inputs @ weights - targets)
    np.testing.assert_allclose(variable.numpy(), weights, rtol=1e-9, atol=1e-12)
