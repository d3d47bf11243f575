"""Failures: which exception is raised on which ranks, and that later operations work."""

import functools
import threading

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from harness.rank import await_asleep
from horovod.common.process_sets import _temp_process_set_object
from horovod.tensorflow import mpi_ops
from horovod.tensorflow._library import operations
from tf_support import graph_function, last_rank, raises

# As with a TensorFlow whose kernels hold their thread until the operation is done.
SYNCHRONOUS = {"HOROVOD_TF_SYNCHRONOUS_KERNELS": "1"}
# On three ranks two agree where one differs.
THREE = pytest.mark.ranks(3, framework="tensorflow")
pytestmark = [
    THREE,
    pytest.mark.ranks(2, framework="tensorflow", id="synchronous", process_env=SYNCHRONOUS, slow=True),
]

errors = tf.errors
v1 = tf.compat.v1


def faulty():
    """The rank that differs."""
    return last_rank()


def works(name):
    """Check that the engine still works, and that the name can be used again."""
    found = mpi_ops._allreduce(tf.ones([2]), name)
    assert np.array_equal(found.numpy(), np.full(2, hvd.size())), found


def everywhere(kind, text, name, call):
    """Raise AssertionError unless `call(name)` raises this error on this rank: eagerly, in tf.function and in a graph of
    TensorFlow 1."""
    raises(kind, text, lambda: call(name))
    works(name)
    function = graph_function(lambda: call(name))
    raises(kind, text, function)
    raises(kind, text, function)
    with tf.Graph().as_default(), v1.Session() as session:
        fetches = call(name)
        raises(kind, text, lambda: session.run(fetches))
    works(name)


def test_disagreements():
    mine = hvd.rank() == faulty()
    for text, name, call in (
        (
            r"Mismatched ALLREDUCE tensor shapes: One rank sent a tensor of shape \[",
            "shape",
            lambda name: mpi_ops._allreduce(tf.ones([3 if mine else 2]), name),
        ),
        (
            "Mismatched data types: One rank had type",
            "dtype",
            lambda name: mpi_ops._allreduce(tf.ones([2], tf.float64 if mine else tf.float32), name),
        ),
        (
            "Mismatched prescale and/or postscale factors",
            "factor",
            lambda name: mpi_ops._allreduce(tf.ones([2]), name, prescale_factor=2.0 if mine else 1.0),
        ),
        (
            "Mismatched reduction operation",
            "op",
            lambda name: mpi_ops._allreduce(tf.ones([2]), name, hvd.Max if mine else hvd.Min),
        ),
        (
            "Mismatched BROADCAST root ranks",
            "root",
            lambda name: hvd.broadcast(tf.ones([2]), faulty() if mine else 0, name),
        ),
        (
            "Mismatched ALLGATHER tensor shapes",
            "rows",
            lambda name: hvd.allgather(tf.ones([2, 3 if mine else 2]), name),
        ),
        ("rank-zero tensor", "scalar", lambda name: hvd.allgather(tf.constant(1.0), name)),
        (
            "",
            "members",
            lambda name: mpi_ops._grouped_allreduce([tf.ones([2])] * (3 if mine else 2), name),
        ),
    ):
        everywhere(errors.FailedPreconditionError, text, name, call)


def test_arguments_of_one_rank():
    """A call is refused on one rank before the engine gets it. The other ranks' calls must fail as well, and at once."""
    mine = hvd.rank() == faulty()

    def refused(kind, text, name, wrong, right):
        if mine:
            raises(kind, text, lambda: wrong(name))
        else:
            raises(errors.InvalidArgumentError, f"rank {faulty()}", lambda: right(name))
        works(name)

    def right(name):
        return mpi_ops._allreduce(tf.ones([2]), name)

    both = (ValueError, TypeError)
    for name in ("given", None):
        refused(
            ValueError,
            "complex64 is not supported",
            name,
            lambda n: mpi_ops._allreduce(tf.ones([2], tf.complex64), n),
            right,
        )
        refused(
            ValueError, "Unknown reduce op", name, lambda n: mpi_ops._allreduce(tf.ones([2]), n, op=77), right
        )
        refused(both, "", name, lambda n: mpi_ops._allreduce(object(), n), right)
        refused(
            ValueError,
            "root_rank must be",
            name,
            lambda n: hvd.broadcast(tf.ones([2]), "not a rank", n),
            lambda n: hvd.broadcast(tf.ones([2]), 0, n),
        )
        for root in (1 << 32, 1 << 70, 0.9, "0"):
            refused(
                ValueError,
                "root_rank must be",
                name,
                lambda n, root=root: hvd.broadcast(tf.ones([2]), root, n),
                lambda n: hvd.broadcast(tf.ones([2]), 0, n),
            )
        for number in ("abc", None):
            refused(
                ValueError,
                "prescale_factor must be a number",
                name,
                lambda n, number=number: mpi_ops._allreduce(tf.ones([2]), n, prescale_factor=number),
                right,
            )
        refused(
            ValueError,
            "32-bit integer",
            name,
            lambda n: hvd.alltoall(tf.ones([hvd.size()]), tf.ones([hvd.size()]), n),
            lambda n: hvd.alltoall(tf.ones([hvd.size()]), None, n),
        )
        refused(
            ValueError,
            "HorovodReducescatter does not support scalar inputs",
            name,
            lambda n: mpi_ops._reducescatter(tf.constant(1.0), n),
            lambda n: mpi_ops._reducescatter(tf.ones([4]), n),
        )
        refused(
            ValueError,
            "at least one tensor",
            name,
            lambda n: mpi_ops._grouped_allreduce([], n),
            lambda n: mpi_ops._grouped_allreduce([tf.ones([2])], n),
        )

    # The other ranks pass the name that the number would be as text.
    refused(TypeError, "name must be a str", "5", lambda n: mpi_ops._allreduce(tf.ones([2]), int(n)), right)


def test_arguments_of_one_rank_in_functions():
    """A mistake that is found when a function or a graph is made: the other ranks' operation of that name fails."""
    mine = hvd.rank() == faulty()

    def wrong_op():
        return mpi_ops._allreduce(tf.ones([2]), "op", 77 if mine else hvd.Sum)

    def wrong_root():
        return hvd.broadcast(tf.ones([2]), "0" if mine else 0, "root")

    def wrong_tensor():
        with tf.name_scope("scope"):
            return hvd.allreduce(object() if mine else tf.ones([2]), name="tensor", ignore_name_scope=True)

    for made in (wrong_op, wrong_root, wrong_tensor):
        function = graph_function(made)
        if mine:
            raises((ValueError, TypeError), "", function)
        else:
            raises(errors.InvalidArgumentError, f"rank {faulty()}", function)
        works("after a function")
        with tf.Graph().as_default(), v1.Session() as session:
            if mine:
                raises((ValueError, TypeError), "", made)
            else:
                raises(
                    errors.InvalidArgumentError, f"rank {faulty()}", functools.partial(session.run, made())
                )
        works("after a graph")


class Breaks(hvd.Compression.none):
    @staticmethod
    def compress(tensor):
        raise OSError("no room to compress")


def test_tensors_of_one_rank():
    """On one rank a value that cannot be converted to a tensor."""
    slices = tf.IndexedSlices(tf.ones([2, 3]), tf.range(2))
    rows = tf.ones([2])

    def grouped(n):
        return hvd.grouped_allreduce([rows], name=n)

    def scattered(n):
        return hvd.reducescatter(rows, name=n)

    def all_scattered(n):
        return hvd.grouped_reducescatter([rows])

    for name in ("given", None):
        for kind, text, wrong, right in (
            (ValueError, "non-rectangular", lambda n: hvd.allreduce([[1.0, 2.0], [3.0]], name=n), None),
            (OSError, "no room", lambda n: hvd.allreduce(rows, name=n, compression=Breaks), None),
            (ValueError, "found int", lambda n: hvd.grouped_allreduce(5, name=n), grouped),
            (ValueError, "non-rectangular", lambda n: hvd.grouped_allreduce([[[1.0], 2.0]], name=n), grouped),
            (
                NotImplementedError,
                "Adasum",
                lambda n: hvd.reducescatter(rows, op=hvd.Adasum, name=n),
                scattered,
            ),
            (NotImplementedError, "IndexedSlices", lambda n: hvd.reducescatter(slices, name=n), scattered),
            (OSError, "no room", lambda n: hvd.reducescatter(rows, name=n, compression=Breaks), scattered),
            (
                NotImplementedError,
                "IndexedSlices",
                lambda n: hvd.grouped_reducescatter([slices]),
                all_scattered,
            ),
            (ValueError, "found NoneType", lambda n: hvd.grouped_reducescatter(None), all_scattered),
        ):
            if hvd.rank() == faulty():
                raises(kind, text, lambda w=wrong, n=name: w(n))
            else:
                right = right or (lambda n: hvd.allreduce(rows, name=n))
                raises(errors.InvalidArgumentError, f"rank {faulty()}", lambda r=right, n=name: r(n))
            works(name)
        if hvd.rank() == faulty():
            raises(
                NotImplementedError,
                "Average and Sum, not with Min",
                lambda n=name: hvd.allreduce(slices, op=hvd.Min, name=n),
            )
        else:
            raises(
                errors.InvalidArgumentError, f"rank {faulty()}", lambda n=name: hvd.allreduce(slices, name=n)
            )
    found = hvd.grouped_reducescatter(np.ones([2, hvd.size()], np.float32), op=hvd.Sum)
    assert [f.numpy().tolist() for f in found] == [[hvd.size()]] * 2, found
    assert hvd.grouped_allreduce([]) == [] and hvd.grouped_reducescatter([]) == []


def test_arguments_that_the_engine_refuses():
    invalid = errors.InvalidArgumentError
    rows = np.ones(hvd.size() + 1, np.float32)
    everywhere(invalid, "[Ss]plits", "sum", lambda name: hvd.alltoall(rows, [hvd.size()] * hvd.size(), name))
    everywhere(
        invalid,
        "Number of entries in splits",
        "count",
        lambda name: hvd.alltoall(rows, [1] * (hvd.size() + 1), name),
    )
    everywhere(invalid, "1D splits", "matrix", lambda name: hvd.alltoall(rows, [[1] * hvd.size()], name))
    everywhere(invalid, "even multiple", "uneven", lambda name: hvd.alltoall(rows, None, name))
    everywhere(invalid, "root rank 99", "root", lambda name: hvd.broadcast(rows, 99, name))
    raises(ValueError, "ProcessSet", lambda: mpi_ops._allreduce(rows, process_set=3))
    raises(
        ValueError, "not been registered", lambda: mpi_ops._allreduce(rows, process_set=hvd.ProcessSet([0]))
    )
    nowhere = _temp_process_set_object(55)
    for call in (
        lambda: hvd.allreduce(rows, process_set=nowhere),
        lambda: hvd.allgather(rows, process_set=nowhere),
        lambda: hvd.broadcast(rows, 0, process_set=nowhere),
        lambda: hvd.alltoall(rows, process_set=nowhere),
        lambda: hvd.reducescatter(rows, process_set=nowhere),
        lambda: hvd.barrier(process_set=nowhere),
    ):
        raises(ValueError, "not been registered. Its number is 55", call)
        raises(ValueError, "not been registered. Its number is 55", graph_function(call))


def test_scalars_in_functions():
    function = graph_function(lambda x: mpi_ops._reducescatter(x), input_signature=[tf.TensorSpec(None)])
    raises(
        errors.InvalidArgumentError,
        "HorovodReducescatter does not support scalar inputs",
        lambda: function(1.0),
    )
    with tf.Graph().as_default():
        raises(
            ValueError,
            "HorovodReducescatter does not support scalar inputs",
            lambda: operations.horovod_reducescatter(tf.constant(1.0)),
        )


def test_set_of_others():
    hvd.shutdown()
    others = hvd.ProcessSet([0])
    hvd.init(process_sets=[others])
    if hvd.rank() == 0:
        assert float(mpi_ops._allreduce(tf.constant(2.0), "mine", process_set=others)) == 2.0
    else:
        raises(
            errors.InvalidArgumentError,
            "not a member",
            lambda: mpi_ops._allreduce(tf.constant(2.0), "mine", process_set=others),
        )
    assert int(hvd.process_set_included_op(others.process_set_id)) == (hvd.rank() == 0)
    raises(errors.InvalidArgumentError, "no process set with id 55", lambda: hvd.size_op(55))


@THREE  # a process set without one rank, in which a rank can wait for another
def test_a_set_that_is_removed():
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    members = hvd.add_process_set([0, 1])
    if hvd.rank() == 0:
        # No other rank calls it, and then the process set is removed.
        found, begun = [], threading.Event()

        def wait():
            ones = tf.ones([1])
            begun.set()
            try:
                found.append(mpi_ops._allreduce(ones, "never", process_set=_same(members)))
            except Exception as error:
                found.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        begun.wait(60)
        await_asleep(thread.native_id, quiet=1, seconds=60)  # no other sign shows that the call waits
    hvd.allreduce(tf.ones([1]), name="all")
    hvd.remove_process_set(members)
    if hvd.rank() == 0:
        thread.join(60)
        assert len(found) == 1 and isinstance(found[0], errors.AbortedError), found
        assert "removed" in str(found[0]), found
    hvd.barrier()


def _same(members):
    # Removing invalidates the caller's object; the thread has an object of its own.
    return _temp_process_set_object(members.process_set_id)


def test_before_and_after():
    text = "Horovod has not been initialized; use hvd.init()."
    function = graph_function(lambda x: mpi_ops._allreduce(x, "late"))
    function(tf.ones([1]))
    hvd.shutdown()
    for call in (
        lambda: mpi_ops._allreduce(tf.ones([1])),
        lambda: function(tf.ones([1])),
        hvd.size_op,
        hvd.join,
        lambda: tf.function(hvd.allgather)(tf.ones([1])),
    ):
        raises(errors.FailedPreconditionError, text, call)
    assert int(hvd.process_set_included_op()) == -1
    hvd.init()
    assert float(function(tf.ones([1]))[0]) == hvd.size()


def test_job_that_ends():
    """A rank that shuts down ends the operations that other ranks wait for."""
    if hvd.rank() == 0:
        hvd.shutdown()
    else:
        function = graph_function(lambda x: mpi_ops._allreduce(x, "no rank answers"))
        raises(
            errors.UnknownError,
            "HorovodAllreduce: .*Horovod has been shut down",
            lambda: function(tf.ones([1])),
        )
        raises(errors.UnknownError, "HorovodAllgather: .*shut down", lambda: hvd.allgather(tf.ones([1])))
        hvd.shutdown()
    hvd.init()
    works("again")
