"""TensorFlow with one thread for operations: a kernel that kept it while the other ranks wait for another operation would
end the job."""

import threading

import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow import mpi_ops
from tf_support import graph_function, near, total_of_ranks

pytestmark = pytest.mark.ranks(
    2, framework="tensorflow", id="one-thread", process_env={"TF_NUM_INTEROP_THREADS": "1"}, slow=True
)

COUNT = 6


def own_order(turn=0):
    """The numbers of the operations in this rank's order."""
    numbers = list(range(COUNT))
    return (
        numbers[hvd.rank() + turn :] + numbers[: hvd.rank() + turn] if hvd.rank() % 2 == 0 else numbers[::-1]
    )


def test_there_is_one_thread():
    assert tf.config.threading.get_inter_op_parallelism_threads() in (0, 1)
    threads = set()

    @graph_function
    def step():
        def note(_):
            threads.add(threading.get_native_id())
            return 0.0

        return [tf.numpy_function(note, [tf.constant(float(i))], tf.float64) for i in range(8)]

    step()
    assert len(threads) == 1, threads


def test_ranks_begin_operations_in_different_orders():
    @graph_function
    def step(x):
        # Each operation begins when the one before it in this rank's order has got its input.
        results, before = {}, tf.no_op()
        for number in own_order():
            with tf.control_dependencies([before]):
                value = x * (number + 1.0)
            results[number] = mpi_ops._allreduce(value, f"orders.{number}")
            before = value.op
        return [results[number] for number in range(COUNT)]

    for _ in range(20):
        near(
            step(tf.constant([hvd.rank() + 1.0])),
            [[total_of_ranks() * (number + 1.0)] for number in range(COUNT)],
        )


def test_ranks_wait_for_different_operations_first():
    """Rank 0 needs the result of the first operation for the second one; the other ranks begin with the second one."""

    @tf.function
    def step(x):
        if hvd.rank() == 0:
            first = mpi_ops._allreduce(x, "needed.first")
            with tf.control_dependencies([first]):
                return first, mpi_ops._allreduce(x * 2.0, "needed.second")
        second = mpi_ops._allreduce(x * 2.0, "needed.second")
        late = x
        for _ in tf.range(200):
            late = tf.tanh(late)
        return mpi_ops._allreduce(late * 0.0 + x, "needed.first"), second

    for _ in range(20):
        near(step(tf.constant([hvd.rank() + 1.0])), [[total_of_ranks()], [total_of_ranks() * 2.0]])


def test_functions_take_turns():
    """What a kernel has learned in one order does not fit the next one."""

    def function(turn):
        @graph_function
        def step(x):
            results = {n: mpi_ops._allreduce(x * (n + 1.0), f"turns.{n}") for n in own_order(turn)}
            return [results[number] for number in range(COUNT)]

        return step

    steps = [function(turn) for turn in range(3)]
    for k in range(30):
        near(
            steps[k % 3](tf.constant([hvd.rank() + 1.0])),
            [[total_of_ranks() * (number + 1.0)] for number in range(COUNT)],
        )


def test_a_chain():
    @graph_function
    def chain(x):
        for number in range(20):
            x = mpi_ops._allreduce(x, f"chain.{number}") / hvd.size()
        return x

    for _ in range(10):
        near(chain(tf.constant([float(hvd.rank())])), [sum(range(hvd.size())) / hvd.size()])


def test_gradients():
    weights = [tf.Variable([1.0 + i]) for i in range(COUNT)]

    @graph_function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.add_n([w * w * x for w in weights])
        return hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(loss, weights)

    for _ in range(20):
        near(
            step(tf.constant([hvd.rank() + 1.0])),
            [[2.0 * (1.0 + i) * total_of_ranks()] for i in range(COUNT)],
        )
