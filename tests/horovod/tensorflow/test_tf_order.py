"""Operations that keep the program's order: calls of compiled functions, join and barrier in functions."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow import mpi_ops
from tf_support import graph_function, near, total_of_ranks, v1

pytestmark = pytest.mark.ranks(2, framework="tensorflow")


def compiled(factor):
    weight = tf.Variable(float(factor))

    def function(x):
        return mpi_ops._allreduce(x * weight, f"compiled_{factor}")

    function.__name__ = f"compiled_{factor}"
    return graph_function(function, jit_compile=True), weight


def calls_in_order(function, *arguments):
    """Raise AssertionError unless each call of a function in this function waits for the call before it."""
    graph = function.get_concrete_function(*arguments).graph
    calls = [op for op in graph.get_operations() if "PartitionedCall" in op.type]
    assert len(calls) > 1, calls
    for before, after in itertools.pairwise(calls):
        waits_for = {*after.control_inputs, *(tensor.op for tensor in after.inputs)}
        assert before in waits_for, (before.name, after.name, waits_for)


def test_compiled_functions_with_variables_of_their_own():
    """Each compiled call holds a thread until it is done, and ranks have their data at different times."""
    functions = [compiled(factor) for factor in (1, 2)]

    @tf.function
    def step(x, late):
        total = 0.0
        with tf.GradientTape() as tape:
            for i, (function, _) in enumerate(functions):
                y = x
                for _ in tf.range(tf.where((i == 0) == late, 300, 1)):
                    y = tf.tanh(y) + 1.0
                total += tf.reduce_sum(function(y * 0.0 + x))
        return total, tape.gradient(total, [weight for _, weight in functions])

    x, late = tf.constant([hvd.rank() + 1.0, 2.0]), tf.constant(hvd.rank() == 0)
    calls_in_order(step, x, late)
    for _ in range(3):
        total, slopes = step(x, late)
        near(total, (total_of_ranks() + 2 * hvd.size()) * 3)
        near(slopes, [hvd.size() * (hvd.rank() + 3.0)] * 2)


def test_a_compiled_function_twice():
    @functools.partial(graph_function, jit_compile=True)
    def one(x):
        return mpi_ops._allreduce(x)

    @graph_function
    def both(a, b):
        return one(a) + 10.0 * one(b)

    x = tf.constant([hvd.rank() + 1.0])
    calls_in_order(both, x, x)
    for _ in range(5):
        near(both(x, x * 2.0), [21.0 * total_of_ranks()])


def test_join_in_a_function():
    @tf.function
    def step(x):
        before = mpi_ops._allreduce(x * 2.0)
        last = hvd.join()
        return before, last, mpi_ops._allreduce(x * 3.0)

    @tf.function
    def branch(x):
        before = mpi_ops._allreduce(x * 2.0)
        if tf.reduce_sum(x) > 0.0:
            hvd.join()
        return before

    for i in range(5):
        # Shapes differ from one call to the next, so that a call that overtakes another one fails.
        x = tf.fill([100 + i], hvd.rank() + 1.0)
        before, last, after = step(x)
        near(before, np.full(100 + i, 2.0 * total_of_ranks()))
        near(after, np.full(100 + i, 3.0 * total_of_ranks()))
        assert int(last) in range(hvd.size()), last
        near(branch(x), np.full(100 + i, 2.0 * total_of_ranks()))


def test_barrier_in_a_function():
    @tf.function
    def step(x):
        first = mpi_ops._allreduce(x)
        hvd.barrier()
        return first, mpi_ops._allreduce(x * 2.0)

    x = tf.constant([hvd.rank() + 1.0])
    operations = step.get_concrete_function(x).graph.get_operations()
    first, barrier, second = [op for op in operations if op.type in ("HorovodAllreduce", "HorovodBarrier")]
    assert first in barrier.control_inputs and barrier in second.control_inputs
    near(tf.concat(step(x), 0), [total_of_ranks(), 2.0 * total_of_ranks()])


def test_rounds_of_loops_in_graphs():
    """Rounds that do not depend on each other run at the same time, and each meets the same round of other ranks."""
    rounds = 40

    def results(x):
        def body(i, array):
            return i + 1, array.write(i, mpi_ops._allreduce(x * tf.cast(i, tf.float32)))

        return v1.while_loop(lambda i, _: i < rounds, body, (0, tf.TensorArray(tf.float32, rounds)))[
            1
        ].stack()

    wanted = np.arange(rounds)[:, None] * np.full(3, total_of_ranks())
    for switch in (v1.disable_control_flow_v2, v1.enable_control_flow_v2):
        switch()
        with tf.Graph().as_default(), v1.Session() as session:
            holder = v1.placeholder(tf.float32, [3])
            found = results(holder)
            for _ in range(5):
                near(session.run(found, {holder: np.full(3, hvd.rank() + 1.0)}), wanted)
