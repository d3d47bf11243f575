"""Operations in graphs: many at once on one thread, names, loops, branches, functions in functions, threads,
saved models."""

import tempfile
import threading

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow import mpi_ops
from tf_support import near, raises, total_of_ranks

pytestmark = pytest.mark.ranks(2, framework="tensorflow")

v1 = tf.compat.v1


def test_many_at_once_on_one_thread():
    count = 200
    with tf.Graph().as_default():
        holder = v1.placeholder(tf.float32, [3])
        order = range(count) if hvd.rank() % 2 else reversed(range(count))
        results = {i: mpi_ops._allreduce(holder * (i + 1), f"many_{i}") for i in order}
        config = v1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
        with v1.Session(config=config) as session:
            for _ in range(3):
                found = session.run(
                    [results[i] for i in range(count)], {holder: np.full(3, hvd.rank() + 1.0)}
                )
                for i, value in enumerate(found):
                    assert np.array_equal(value, np.full(3, total_of_ranks() * (i + 1.0))), (i, value)


def test_order_does_not_matter_in_functions():
    count = 60

    def body(x):
        order = list(range(count)) if hvd.rank() % 2 else list(reversed(range(count)))
        results = {i: mpi_ops._allreduce(x * (i + 1), f"any_{i}") for i in order}
        return [results[i] for i in range(count)]

    function = tf.function(body)
    for _ in range(3):
        for i, value in enumerate(function(tf.constant([hvd.rank() + 1.0]))):
            assert float(value[0]) == total_of_ranks() * (i + 1), (i, value)


def made_in(graph):
    """The names by which other ranks know the operations of a graph and of its branches and loops."""
    return [
        op.get_attr("tensor_name").decode() for op in graph.get_operations() if op.type == "HorovodAllreduce"
    ]


def test_names():
    x = tf.constant([1.0])

    @tf.function(input_signature=[tf.TensorSpec([None], name="x")])
    def step(x):
        mpi_ops._allreduce(x)
        mpi_ops._allreduce(x)
        with tf.name_scope("outer"), tf.name_scope("inner"):
            mpi_ops._allreduce(x)
            mpi_ops._allreduce(x, "given: 1")
            mpi_ops._allreduce(x, "given: 1")
            mpi_ops._allreduce(x, "plain", ignore_name_scope=True)
        return mpi_ops._allreduce(tf.constant([2.0]) + 1.0, ignore_name_scope=True)

    names = made_in(step.get_concrete_function().graph)
    assert names[:6] == [
        "step/HorovodAllreduce_x_0",
        "step/HorovodAllreduce_x_0_1",
        "step/outer/inner/HorovodAllreduce_x_0",
        "step/outer/inner/given: 1",
        "step/outer/inner/given: 1_1",
        "plain",
    ], names
    assert names[6].startswith("HorovodAllreduce_"), names
    step(x)
    # The name of a value from outside is a number counted by the process, and the ranks have different counts.
    for _ in range(1000 * hvd.rank()):
        tf.constant(0.0)
    outside = tf.constant([hvd.rank() + 1.0])
    function = tf.function(lambda: mpi_ops._allreduce(outside))
    assert float(function()[0]) == total_of_ranks()
    with tf.Graph().as_default() as graph:
        with v1.name_scope("scope"):
            mpi_ops._allreduce(v1.placeholder(tf.float32, [1], name="p"))
        assert made_in(graph) == ["scope/HorovodAllreduce_scope_p_0"], made_in(graph)


def test_ranks_that_make_other_things_too():
    """One rank makes more functions, loops and constants than the others, as a rank that writes summaries does."""

    @tf.function
    def extra(x):
        for _ in tf.range(3):
            x = x + 1.0 if tf.reduce_sum(x) > 0 else x - 1.0
        return x

    for size in range(1, 6 if hvd.rank() == 0 else 1):
        extra(tf.ones([size]))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            for _ in tf.range(3):
                x = mpi_ops._allreduce(x, op=hvd.Average) if tf.reduce_sum(x) > 0 else mpi_ops._allreduce(-x)
            y = tf.reduce_sum(x)
        return tape.gradient(y, x), x

    near(step(tf.constant([hvd.rank() + 1.0]))[1], [total_of_ranks() / hvd.size()])


def test_loops_whose_rounds_are_independent():
    """Rounds that do not wait for each other would meet other rounds of other ranks, if they had one name."""

    @tf.function
    def rounds(x):
        results = tf.TensorArray(tf.float32, 40)
        for i in tf.range(40):
            results = results.write(i, mpi_ops._allreduce(x * tf.cast(i, tf.float32)))
        return results.stack()

    for _ in range(3):
        near(rounds(tf.constant(hvd.rank() + 1.0)), np.arange(40.0) * total_of_ranks())
    mapped = tf.function(lambda x: tf.map_fn(mpi_ops._allreduce, x, parallel_iterations=10))
    near(mapped(tf.range(20.0) * (hvd.rank() + 1)), np.arange(20.0) * total_of_ranks())


def test_results_that_nobody_uses():
    """Operations whose results are not used are carried out: otherwise each rank's settings would decide."""

    @tf.function
    def step(x):
        mpi_ops._allreduce(x, "dropped")
        return x

    step(tf.constant([1.0]))
    # If one rank had dropped the first call, this call would meet the other ranks' first call.
    found = mpi_ops._allreduce(tf.constant([hvd.rank() + 1.0, 0.0]), "step/dropped")
    near(found, [total_of_ranks(), 0])


def test_functions_in_functions():
    @tf.function
    def inner(x):
        return mpi_ops._allreduce(x)

    @tf.function
    def outer(x):
        return inner(x), mpi_ops._allreduce(2 * x), inner(3 * x), mpi_ops._allreduce(x)

    for _ in range(3):
        near(tf.stack(outer(tf.constant(hvd.rank() + 1.0))), np.array([1, 2, 3, 1]) * total_of_ranks())


def test_threads():
    function = tf.function(lambda x, name: mpi_ops._allreduce(x, name), autograph=False)
    failures = []

    def work(number):
        try:
            for i in range(20):
                near(
                    mpi_ops._allreduce(tf.constant([hvd.rank() + 1.0]), f"eager_{number}"), [total_of_ranks()]
                )
                near(
                    function(tf.constant([(hvd.rank() + 1.0) * i]), f"function_{number}"),
                    [total_of_ranks() * i],
                )
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not failures and not any(t.is_alive() for t in threads), failures


def test_a_name_twice_at_once():
    """The second call is refused, and no rank hangs."""
    with tf.Graph().as_default(), v1.Session() as session:
        one = tf.function(lambda x: mpi_ops._allreduce(x, "once"))
        both = [one(tf.constant([1.0])), one(tf.constant([2.0]))]
        try:
            session.run(both)
        except tf.errors.OpError as error:
            assert "same name" in str(error) or "failed" in str(error), error
    near(mpi_ops._allreduce(tf.constant([1.0]), "afterwards"), [hvd.size()])


def test_dataset_and_eager_loops():
    dataset = tf.data.Dataset.range(5).map(lambda i: mpi_ops._allreduce(tf.cast(i, tf.float32), "mapped"))
    near([float(value) for value in dataset], np.arange(5.0) * hvd.size())


def test_saved_model():
    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
        def __call__(self, x):
            return mpi_ops._allreduce(x, "saved") + hvd.allgather(x, "gathered")[:1]

    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(Model(), folder)
        loaded = tf.saved_model.load(folder)
        near(loaded(tf.constant([hvd.rank() + 1.0, 2.0])), np.array([total_of_ranks(), 2 * hvd.size()]) + 1)


def test_memory_is_given_back():
    function = tf.function(lambda x: mpi_ops._allreduce(x * 1.0, "large"))
    x = tf.ones([1 << 18])

    def resident():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    def reduce(rounds):
        for _ in range(rounds):
            function(x)
            mpi_ops._allreduce(x, "large too")

    reduce(20)
    before = resident()
    reduce(100)
    # Of 100 MB that each of the two calls reduced. The allocator keeps up to 20 MB for the threads that took part.
    assert resident() - before < 50_000, (before, resident())


def test_compiled_functions_end_like_others():
    @tf.function(jit_compile=True)
    def step(x):
        y = mpi_ops._allreduce(x, "compiled")
        if tf.reduce_sum(y) > 0:
            y = mpi_ops._allreduce(y * 2.0)
        return [y, *mpi_ops._grouped_allreduce([y, tf.cast(y, tf.float64)], op=hvd.Average)]

    for _ in range(3):
        found = step(tf.constant([hvd.rank() + 1.0]))
        for value in found:
            near(value, [2.0 * total_of_ranks() * hvd.size()])
    # The sum over all ranks is not the number of rows that a rank expects.
    shapes = tf.ones([hvd.rank() * hvd.rank() + 1])
    function = tf.function(lambda x: mpi_ops._allreduce(x, "shape"), jit_compile=True)
    raises(
        tf.errors.OpError, "HorovodAllreduce: Mismatched ALLREDUCE tensor shapes", lambda: function(shapes)
    )
    gather = tf.function(lambda x: hvd.allgather(x, "rows"), jit_compile=True)
    raises(tf.errors.OpError, "HorovodAllgather: .*equally many rows", lambda: gather(shapes))
    unknown = tf.function(
        lambda x: hvd.allgather(x), jit_compile=True, input_signature=[tf.TensorSpec([None], tf.float32)]
    )
    raises(NotImplementedError, "shapes must be known", lambda: unknown(shapes))
    splits = tf.function(lambda x: hvd.alltoall(x, [1] * hvd.size()), jit_compile=True)
    raises(NotImplementedError, "jit_compile=False", lambda: splits(tf.ones([hvd.size()])))
    raises(NotImplementedError, "hvd.join cannot be used", tf.function(lambda: hvd.join(), jit_compile=True))


def test_compiled_and_not():
    """Some ranks may compile a function that others do not compile."""
    function = tf.function(lambda x: mpi_ops._allreduce(x * 2.0), jit_compile=hvd.rank() % 2 == 0)
    near(function(tf.constant([hvd.rank() + 1.0])), [2.0 * total_of_ranks()])
