"""horovod.tensorflow on tensors of a device. Jobs differ in how the device is served; the results are the same. The
device's streams are late (TOPS_SIM_DELAY_US, TF_GCU_JITTER_US): an operation that does not wait for the right stream gets
other numbers."""

import contextlib
import itertools

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow import _library, mpi_ops
from tf_device_under_test import (
    DEVICE,
    HOST,
    NATIVE,
    NEXT_DEVICE,
    ORDINAL,
    STAGED,
    data,
    on_device,
    reports_of_copies,
    same,
    served,
    tf_gcu,
)

native, staged, host = (pytest.mark.ranks(2, **job) for job in (NATIVE, STAGED, HOST))
pytestmark = [native, staged, host]

REDUCIBLE = ["uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
MOVABLE = REDUCIBLE + ["uint16", "int16", "bool"]
COMBINE = {
    hvd.Sum: lambda parts: parts.sum(0),
    hvd.Min: lambda parts: parts.min(0),
    hvd.Max: lambda parts: parts.max(0),
    hvd.Product: lambda parts: parts.prod(0),
}


@contextlib.contextmanager
def raises(kind, *fragments):
    try:
        yield
    except kind as error:
        for fragment in fragments:
            assert fragment in str(error), f"{fragment!r} is not in {str(error)!r}"
    else:
        raise AssertionError(f"no {kind.__name__} was raised")


def everyones(shape, dtype, seed=0):
    return np.stack([data(r, shape, dtype, seed).astype(np.float64) for r in range(hvd.size())])


def mine(shape, dtype, seed=0):
    return on_device(data(hvd.rank(), shape, dtype, seed))


def ways(function):
    """The function itself and the traced function, on the device."""

    def placed(*args):
        with tf.device(DEVICE):
            return function(*args)

    return ("eager", placed), ("function", tf.function(placed))


def still_works():
    with tf.device(DEVICE):
        total = mpi_ops._allreduce(on_device(np.ones(3, np.float32)), op=hvd.Sum)
    same(total, [hvd.size()] * 3, "afterwards")


@host
def test_the_report_says_that_tensorflow_copies():
    still_works()
    report = hvd.backend_report()
    (row,) = (r for r in report.served if (r.device, r.operation, r.dtype) == ("gcu", "allreduce", "float32"))
    assert (row.support, row.backend, row.reduction) == ("STAGED", "shm", "sum")
    assert {r.support for r in report if r.device == "gcu"} == {"STAGED"}


@native
@host
def test_copies_are_reported_once():
    """By one rank, for all jobs of its process."""
    _library._warned.clear()  # other tests have used the device
    with reports_of_copies() as reports:
        for _ in range(2):
            still_works()
            hvd.barrier()
            hvd.shutdown()
            hvd.init()
    assert len(reports) == (served() == "HOST" and hvd.rank() == 0), reports


@native
@staged
def test_who_serves_says_so():
    still_works()
    from hvd_core._runtime.runtime import engine

    (row,) = (row for row in engine().backend_info() if row.get("device_type") == "gcu")
    assert row["name"] == "eccl_stub" and row["ordinal"] == ORDINAL, row
    found = {(how["collective"], how["dtype"], how["op"]): how["served"] for how in row["served"]}
    assert found["allreduce", "float32", "Sum"] == served(), row["served"]


EVERY_PAIR = list(itertools.product(REDUCIBLE, COMBINE))


def allreduce_as_numpy(cases, function_cases):
    """Check allreduce for pairs of a dtype and an operation: eagerly with several shapes, and in a function."""
    for way, reduce in ways(lambda t, op: mpi_ops._allreduce(t, op=op, name="all")):
        for dtype, op in cases if way == "eager" else function_cases:
            for shape in [(), (0,), (5, 7)] if way == "eager" else [(5, 7)]:
                what = f"{way} {dtype} op {op} {shape}"
                tensor = mine(shape, dtype)
                same(reduce(tensor, op), COMBINE[op](everyones(shape, dtype)), what)
                same(tensor, data(hvd.rank(), shape, dtype), f"{what}: the input")


def test_allreduce_every_type_and_op():
    # A function is traced for each pair, and its kernels are those of eager calls: each type and each operation there.
    in_turn = list(zip(REDUCIBLE, itertools.cycle(COMBINE)))
    allreduce_as_numpy(EVERY_PAIR, in_turn)


@pytest.mark.slow  # all pairs; the test above has each type and each operation
@native
@host
def test_allreduce_every_type_and_op_in_functions():
    allreduce_as_numpy([], EVERY_PAIR)


def test_factors_and_averages():
    def both(tensor):
        scaled = mpi_ops._allreduce(
            tensor, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0, name="scaled"
        )
        return scaled, mpi_ops._allreduce(tensor, op=hvd.Average, name="mean")

    for way, run in ways(both):
        scaled, mean = run(mine((9,), "float32"))
        same(scaled, 2.0 * everyones((9,), "float32").sum(0), way)
        same(mean, everyones((9,), "float32").sum(0) / hvd.size(), way)


def test_broadcast():
    for way, run in ways(lambda t, root: hvd.broadcast(t, root, name="cast")):
        for dtype in MOVABLE if way == "eager" else ["float32", "int64"]:
            for root in range(hvd.size()):
                same(run(mine((4, 3), dtype), root), data(root, (4, 3), dtype), f"{way} {dtype} from {root}")


def test_allgather_of_different_lengths():
    for way, run in ways(lambda t: hvd.allgather(t, name="gather")):
        for dtype in MOVABLE if way == "eager" else ["float32", "bool"]:
            for lengths in (
                [r + 1 for r in range(hvd.size())],
                [2 * r for r in range(hvd.size())],
                [0 for _ in range(hvd.size())],
            ):
                wanted = np.concatenate([data(r, (lengths[r], 3), dtype) for r in range(hvd.size())])
                same(run(mine((lengths[hvd.rank()], 3), dtype)), wanted, f"{way} {dtype} {lengths}")


def test_alltoall():
    def exchange(tensor, splits):
        return hvd.alltoall(tensor, splits, name="exchange")

    for way, run in ways(exchange):
        for dtype in ("float32", "int64", "bool"):
            for pattern in (
                [[r + 1 for r in range(hvd.size())] for _ in range(hvd.size())],
                [[0] * hvd.size() for _ in range(hvd.size())],
            ):
                with tf.device("/device:CPU:0"):
                    splits = tf.constant(pattern[hvd.rank()], tf.int32)
                rows = sum(pattern[hvd.rank()])
                output, received = run(mine((rows, 3), dtype), splits)
                wanted = []
                for r in range(hvd.size()):
                    start = sum(pattern[r][: hvd.rank()])
                    wanted.append(
                        data(r, (sum(pattern[r]), 3), dtype)[start : start + pattern[r][hvd.rank()]]
                    )
                same(output, np.concatenate(wanted), f"{way} {dtype} {pattern}")
                assert received.numpy().tolist() == [pattern[r][hvd.rank()] for r in range(hvd.size())]


def test_reducescatter():
    rows = 2 * hvd.size() + 1  # rank 0 gets one row more
    begin = 2 * hvd.rank() + (hvd.rank() > 0)
    own = slice(begin, begin + 2 + (hvd.rank() == 0))
    for way, run in ways(lambda t, op: mpi_ops._reducescatter(t, op=op, name="scatter")):
        for dtype in ("float32", "float16", "int32"):
            for op in (hvd.Sum, hvd.Max):
                wanted = COMBINE[op](everyones((rows, 3), dtype))[own]
                same(run(mine((rows, 3), dtype), op), wanted, f"{way} {dtype} {op}")


def test_groups():
    shapes, dtypes = [(3,), (0,), (2 * hvd.size(), 5)], ["float32", "float32", "float16"]

    def together(tensors):
        sums = mpi_ops._grouped_allreduce(tensors, op=hvd.Sum, name="group")
        rows = hvd.grouped_allgather(tensors, name="rows")
        parts = mpi_ops._grouped_reducescatter(tensors[2:], op=hvd.Sum, name="parts")
        return sums, rows, parts

    for way, run in ways(together):
        sums, rows, parts = run(
            [mine(shape, dtype, i) for i, (shape, dtype) in enumerate(zip(shapes, dtypes))]
        )
        for i, (shape, dtype) in enumerate(zip(shapes, dtypes)):
            same(sums[i], everyones(shape, dtype, i).sum(0), f"{way} sum {i}")
            same(
                rows[i],
                np.concatenate([data(r, shape, dtype, i) for r in range(hvd.size())]),
                f"{way} rows {i}",
            )
        own = everyones(shapes[2], dtypes[2], 2).sum(0)[2 * hvd.rank() : 2 * hvd.rank() + 2]
        same(parts[0], own, f"{way} parts")


def test_nothing_passes_through_host_memory():
    shape = (2 * hvd.size(), 8)

    def everything(tensor):
        return [
            mpi_ops._allreduce(tensor, op=hvd.Sum, name="h.reduce"),
            hvd.broadcast(tensor, hvd.size() - 1, name="h.cast"),
            hvd.allgather(tensor, name="h.gather"),
            hvd.alltoall(tensor, name="h.exchange"),
            mpi_ops._reducescatter(tensor, op=hvd.Sum, name="h.scatter"),
            *mpi_ops._grouped_allreduce([tensor, tensor], op=hvd.Max, name="h.group"),
        ]

    parts = [data(r, shape, "float32") for r in range(hvd.size())]
    own = slice(2 * hvd.rank(), 2 * hvd.rank() + 2)
    wanted = [sum(parts), parts[-1], np.concatenate(parts), np.concatenate([p[own] for p in parts])]
    wanted += [sum(parts)[own], np.max(parts, 0), np.max(parts, 0)]
    for way, run in ways(everything):
        tensor = mine(shape, "float32")
        run(tensor)  # traced, with all first-time work
        before = tf_gcu.traffic()
        results = run(tensor)
        after = tf_gcu.traffic()
        through_host = (after.to_host - before.to_host, after.to_device - before.to_device)
        if served() == "NATIVE":
            assert through_host == (0, 0), f"{way}: {before} -> {after}"
        else:
            assert sum(through_host) >= 6, f"the count sees nothing. {way}: {before} -> {after}"
        for i, (result, values) in enumerate(zip(results, wanted)):
            same(result, values, f"{way} result {i}")


@native  # who copies waits for the copies
def test_the_host_does_not_wait_for_the_device():
    one = on_device(np.ones(100, np.float32))
    with tf.device(DEVICE):
        mpi_ops._allreduce(one, op=hvd.Sum, name="ahead")
        with tf_gcu.held():
            made = one + one
            total = mpi_ops._allreduce(made, op=hvd.Sum, name="ahead")
            rows = hvd.allgather(made, name="ahead")
            used = total - made
            assert tf_gcu.queued_kernels() == 2, "an operation was not done before its input"
    same(used, [2 * hvd.size() - 2] * 100)
    same(rows, [2] * 100 * hvd.size())


def test_variables():
    with tf.device(DEVICE):
        variables = [tf.Variable(data(hvd.rank(), (3, i + 1), "float32", i)) for i in range(3)]
    hvd.broadcast_(variables, hvd.size() - 1, name="variables")
    for i, variable in enumerate(variables):
        assert variable.device.endswith(DEVICE)
        np.testing.assert_array_equal(variable.numpy(), data(hvd.size() - 1, (3, i + 1), "float32", i))


def test_gradients():
    for name, operation, factor in (
        ("reduce", lambda t: mpi_ops._allreduce(t, op=hvd.Sum, name="g.reduce"), hvd.size()),
        ("gather", lambda t: hvd.allgather(t, name="g.gather"), 1),
        ("cast", lambda t: hvd.broadcast(t, 0, name="g.cast"), 1 if hvd.rank() == 0 else 0),
    ):

        def gradient(tensor, operation=operation):
            with tf.GradientTape() as tape:
                tape.watch(tensor)
                result = operation(tensor)
                loss = result * result
            return result, tape.gradient(loss, tensor)

        for way, run in ways(gradient):
            tensor = on_device(np.full((3, 2), hvd.rank() + 1.0, np.float32))
            _, found = run(tensor)
            # Each rank's loss is the sum of squares of its result. The gradient of allgather and broadcast is a mean.
            wanted = {
                "reduce": 2.0 * sum(r + 1 for r in range(hvd.size())),
                "gather": 2.0 * (hvd.rank() + 1),
                "cast": 2.0,
            }[name]
            np.testing.assert_allclose(
                found.numpy(), np.full((3, 2), wanted * factor), err_msg=f"{way} {name}"
            )


def test_graphs_and_sessions():
    with tf.Graph().as_default(), tf.device(DEVICE):
        fed = tf.compat.v1.placeholder(tf.float32, [4])
        held = tf.identity(fed)
        total = mpi_ops._allreduce(held * held, op=hvd.Sum, name="session")
        result = total + held
        with tf.compat.v1.Session() as session:
            for i in range(5):
                found = session.run(result, {fed: np.full(4, hvd.rank() + i, np.float32)})
                assert (found == sum((r + i) ** 2 for r in range(hvd.size())) + hvd.rank() + i).all(), found


def test_host_and_device_side_by_side():
    def both(here, there):
        with tf.device("/device:CPU:0"):
            first = mpi_ops._allreduce(there, op=hvd.Sum, name="side.host")
        return mpi_ops._allreduce(here, op=hvd.Sum, name="side.device"), first

    with tf.device("/device:CPU:0"):
        there = tf.constant(data(hvd.rank(), (10,), "float32", 1))
    for way, run in ways(both):
        here, first = run(mine((10,), "float32"), there)
        same(here, everyones((10,), "float32").sum(0), way)
        np.testing.assert_array_equal(first.numpy(), everyones((10,), "float32", 1).sum(0))
        assert first.device.endswith("CPU:0") or way == "function", first.device


def test_mistakes():
    with tf.device(DEVICE), raises(tf.errors.OpError, "shape"):
        mpi_ops._allreduce(on_device(np.ones(2 + hvd.rank(), np.float32)), op=hvd.Sum, name="shapes")
    still_works()
    function = tf.function(lambda t: mpi_ops._allreduce(t, op=hvd.Sum, name="types"))
    with tf.device(DEVICE), raises(tf.errors.OpError, "type"):
        function(on_device(np.ones(2, [np.float32, np.float64][hvd.rank() % 2])))
    still_works()
    if served() != "HOST":
        with tf.device(NEXT_DEVICE), raises(tf.errors.InvalidArgumentError, f"gcu device {ORDINAL + 1}"):
            tensor = on_device(np.ones(2, np.float32), where=NEXT_DEVICE)
            mpi_ops._allreduce(tensor, op=hvd.Sum, name="another device")
        still_works()
