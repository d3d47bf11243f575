"""Gradients of the operations: eagerly, in tf.function, in graphs of TensorFlow 1 and in compiled functions, against
formulas in float64."""

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow import mpi_ops
from horovod.tensorflow._call import CallOptions, perform
from tf_support import data, graph_function, near

pytestmark = pytest.mark.ranks(2, framework="tensorflow")

v1 = tf.compat.v1


def all_rows():
    return 2 * hvd.size()


def weights(rank, rows, seed):
    """The weights by which `rank` multiplies the result before it is summed: the gradient of the result."""
    return data(rank, rows, 3, seed=seed)


def mean_of(arrays):
    return np.mean(list(arrays), axis=0)


def own(rows_of, array):
    begin = sum(rows_of(r) for r in range(hvd.rank()))
    return array[begin : begin + rows_of(hvd.rank())]


def loss(results, seed):
    """A scalar. The gradient of each result is this rank's weights."""
    parts = []
    for i, result in enumerate(results if isinstance(results, (list, tuple)) else [results]):
        rows = int(result.shape[0]) if result.shape[0] is not None else None
        factor = tf.constant(weights(hvd.rank(), all_rows() * hvd.size(), seed + i))
        factor = factor[: tf.shape(result)[0]] if rows is None else factor[:rows]
        parts.append(tf.reduce_sum(tf.cast(result, tf.float64) * factor))
    return tf.add_n(parts)


def given(rank, rows=None):
    return weights(rank, all_rows() * hvd.size(), 0)[: rows or all_rows()]


def in_all_ways(*cases, rows=None):
    """Check the gradients of `loss(call(x))` with regard to x for cases (call, wanted, whether XLA can compile it).

    One function of each kind has all cases, as TensorFlow needs longer to make a function than to call it."""
    array = data(hvd.rank(), rows or all_rows(), 3, seed=50)
    calls, compiled = [call for call, *_ in cases], [call for call, _, compiles in cases if compiles]

    def slope(call, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = loss(call(x), 0)
        return tape.gradient(value, x)

    def gradients(x, calls=calls):
        return [slope(call, x) for call in calls]

    def agree(found, compiled=False):
        wanted = [each for _, each, compiles in cases if compiles or not compiled]
        for one, other in zip(found, wanted, strict=True):
            near(one, other)

    agree(gradients(tf.constant(array)))
    function = graph_function(gradients)
    agree(function(tf.constant(array)))
    agree(function(tf.constant(array)))
    if compiled:
        agree(graph_function(lambda x: gradients(x, compiled), jit_compile=True)(tf.constant(array)), True)
    # A function of its own, so its gradient is a separate function.
    inner = graph_function(lambda xs: [call(x) for call, x in zip(calls, xs)])
    xs = [tf.constant(array) for _ in calls]
    with tf.GradientTape() as tape:
        tape.watch(xs)
        value = tf.add_n([loss(each, 0) for each in inner(xs)])
    agree(tape.gradient(value, xs))
    with tf.Graph().as_default(), v1.Session() as session:
        holder = v1.placeholder(tf.float64, [None, 3])
        found = [v1.gradients(loss(call(holder), 0), [holder])[0] for call in calls]
        agree(session.run(found, {holder: array}))


def test_allreduce():
    cases = []
    for op, factor in ((hvd.Sum, hvd.size()), (hvd.Average, 1)):
        wanted = mean_of(given(r) for r in range(hvd.size())) * factor * 0.5 * 3.0
        cases += [
            (lambda x, o=op: mpi_ops._allreduce(x, None, o, 0.5, 3.0), wanted, True),
            (lambda x, o=op: mpi_ops._allreduce(x, "named", o, 0.5, 3.0), wanted, True),
        ]
    in_all_ways(*cases)


def test_grouped_allreduce():
    parts = [
        mean_of(weights(r, all_rows() * hvd.size(), i)[: all_rows()] for r in range(hvd.size())) * hvd.size()
        for i in (0, 1)
    ]
    in_all_ways(
        (lambda x: mpi_ops._grouped_allreduce([x, 2 * x]), parts[0] + 2 * parts[1], True),
        # The loss does not depend on one member: its gradient is zeros, as the group must be the same on all ranks.
        (lambda x: mpi_ops._grouped_allreduce([x, tf.cast(x, tf.float32)])[:1], parts[0], True),
    )


def test_allgather():
    average = mean_of(given(r, all_rows() * hvd.size()) for r in range(hvd.size()))
    wanted = own(lambda r: all_rows(), average)
    in_all_ways(
        (hvd.allgather, wanted, True),
        # Members without a gradient, and members that cannot be reduced.
        (lambda x: hvd.grouped_allgather([x > 0, x, tf.ones([1], tf.int32)])[1:2], wanted, True),
    )

    def rows_of(rank):
        return rank + 1

    total = sum(rows_of(r) for r in range(hvd.size()))
    average = mean_of(given(r, total) for r in range(hvd.size()))
    second = mean_of(weights(r, all_rows() * hvd.size(), 1)[:total] for r in range(hvd.size()))
    wanted = own(rows_of, average)
    in_all_ways(
        (hvd.allgather, wanted, False),
        (lambda x: hvd.grouped_allgather([x, 3 * x]), wanted + 3 * own(rows_of, second), False),
        rows=hvd.rank() + 1,
    )


def test_broadcast():
    root = hvd.size() - 1
    wanted = mean_of(given(r) for r in range(hvd.size())) * float(root == hvd.rank())
    attributes = {"process_set_id": 0, "root_rank": root}
    call = CallOptions("broadcast", None, hvd.global_process_set)
    in_all_ways(
        (lambda x: hvd.broadcast(x, root), wanted, True),
        (lambda x: perform("HorovodGroupedBroadcast", [x, x > 0], attributes, call)[:1], wanted, True),
    )


def test_alltoall():
    wanted = np.concatenate([given(r)[2 * hvd.rank() : 2 * hvd.rank() + 2] for r in range(hvd.size())])
    cases = [(hvd.alltoall, wanted, True)]
    # j rows to rank j; the other rows are not sent.
    splits = list(range(hvd.size()))
    sent = [given(j)[hvd.rank() * j : hvd.rank() * j + j] for j in range(hvd.size())]
    wanted = np.concatenate([*sent, np.zeros([all_rows() - sum(splits), 3])])
    in_all_ways(*cases, (lambda x: hvd.alltoall(x, splits)[0], wanted, False))


def test_reducescatter():
    shares = [len(part) for part in np.array_split(np.arange(all_rows() - 1), hvd.size())]
    means = np.concatenate([given(r, share) for r, share in zip(range(hvd.size()), shares)])
    second = np.concatenate(
        [weights(r, all_rows() * hvd.size(), 1)[:share] for r, share in zip(range(hvd.size()), shares)]
    )
    even = (all_rows() - 1) % hvd.size() == 0
    in_all_ways(
        (
            lambda x: mpi_ops._reducescatter(x, op=hvd.Sum, prescale_factor=0.5),
            means * hvd.size() * 0.5,
            even,
        ),
        (lambda x: mpi_ops._reducescatter(x, op=hvd.Average, prescale_factor=0.5), means * 0.5, even),
        (lambda x: mpi_ops._grouped_reducescatter([x, 2 * x]), (means + 2 * second) * hvd.size(), False),
        rows=all_rows() - 1,
    )


def test_second_order():
    x = tf.constant(data(hvd.rank(), 4))

    def twice(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                value = tf.reduce_sum(mpi_ops._allreduce(x * x) * x)
            first = inner.gradient(value, x)
        return outer.gradient(first, x)

    # The inner gradient is S + 2 x T, where S and T are the sums of x² and of x over the ranks: the gradient of a
    # reduction is the same reduction. The outer gradient follows by the same rule.
    wanted = 2 * data(hvd.rank(), 4) * hvd.size() + 4 * sum(data(r, 4) for r in range(hvd.size()))
    for run in (twice, graph_function(twice)):
        near(run(x), wanted)


def test_loops():
    """The gradient of a loop around an operation."""

    @tf.function
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in tf.range(5):
                y = mpi_ops._allreduce(y, op=hvd.Average) * 2.0
            value = tf.reduce_sum(y)
        return tape.gradient(value, x)

    near(gradient(tf.constant(data(hvd.rank(), 4))), np.full(4, 32.0))
