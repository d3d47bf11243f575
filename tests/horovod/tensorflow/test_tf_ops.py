"""The matrix: every operation with every dtype and shape, eagerly, in tf.function and in a graph of TensorFlow 1, on all
ranks and on process sets, compared with NumPy in float64.

The cases of an operation run as one function and as one graph, since TensorFlow needs some milliseconds to make each. So
many calls are also pending at once.
"""

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow import mpi_ops
from horovod.tensorflow._call import MOVABLE, REDUCIBLE

pytestmark = pytest.mark.ranks(1, 2, framework="tensorflow")

v1 = tf.compat.v1

OPS = {name: getattr(hvd, name) for name in ("Average", "Sum", "Min", "Max", "Product")}
SHAPES = [(), (0,), (1,), (3, 0, 2), (5, 7), (2, 3, 4, 5), (1031,)]
TAILS = [(), (3,), (0, 2)]
ROWS = {"even": lambda r: 4, "more": lambda r: r + 1, "odd only": lambda r: 3 * (r % 2), "none": lambda r: 0}
# Relative to the largest value: one rounding of the result, and one of each factor.
TOLERANCE = {tf.float16: 2e-3, tf.bfloat16: 2e-2, tf.float32: 1e-6, tf.float64: 1e-14}
TYPES = sorted(REDUCIBLE, key=lambda dtype: dtype.name)
MOVED = sorted(MOVABLE, key=lambda dtype: dtype.name)
ALL = hvd.global_process_set


def sets():
    """The process sets of which this rank is a member. Starts Horovod again, as init() takes the sets."""
    size = hvd.size()
    some = [[0], [size - 1, 0], list(range(1, size))] if size > 1 else []
    distinct = {tuple(sorted(set(ranks))) for ranks in some} - {tuple(range(size))}
    named = [hvd.ProcessSet(ranks) for ranks in sorted(distinct)]
    hvd.shutdown()
    hvd.init(process_sets=named)
    return [s for s in (ALL, *named) if s.included()]


def values(rank, shape, dtype, seed=0):
    """The contribution of `rank`, in float64: small numbers, so that sums and products of a few ranks are exact."""
    count = int(np.prod(shape))
    found = (np.arange(count, dtype=np.int64) * 7 + rank * 3 + seed) % 5 + 1
    if dtype == tf.bool:
        return (found % 2).reshape(shape).astype(np.float64)
    return (found - (2.5 if dtype.is_floating else 0)).reshape(shape).astype(np.float64)


def given(rank, shape, dtype, seed=0):
    """The contribution as the array that is the input, of the dtype itself."""
    return values(rank, shape, dtype, seed).astype(dtype.as_numpy_dtype)


def reduced(op, ranks, shape, dtype, prescale=1.0, postscale=1.0, seed=0):
    """The expected result of an allreduce, in float64. Integers truncate after each factor and after the average.

    An average with factors is a sum whose second factor is divided by the number of ranks.
    """
    if op == hvd.Average and (prescale, postscale) != (1.0, 1.0):
        op, postscale = hvd.Sum, postscale / len(ranks)
    keep = np.trunc if dtype.is_integer else (lambda x: x)
    parts = keep(np.stack([values(r, shape, dtype, seed) for r in ranks]) * prescale)
    if op == hvd.Average:
        result = keep(parts.sum(axis=0) / len(ranks))
    else:
        result = {hvd.Sum: parts.sum, hvd.Min: parts.min, hvd.Max: parts.max, hvd.Product: parts.prod}[op](
            axis=0
        )
    return keep(result * postscale)


class Cases:
    """Calls of one operation: the inputs, the function and the expected results of each."""

    def __init__(self):
        self.fed, self.calls, self.wanted, self.names = [], [], [], []

    def add(self, name, arrays, call, *wanted):
        """`call(tensors, name or None)` returns as many tensors as there are wanted arrays."""
        self.names.append(name)
        self.fed.append(arrays)
        self.calls.append(call)
        self.wanted.append(wanted)

    def run(self, fed, named):
        """The results of all calls, every second of them with a name: a list of lists of tensors."""
        results = []
        for i, (arrays, call, name) in enumerate(zip(fed, self.calls, self.names)):
            result = call(list(arrays), name if named or i % 2 else None)
            results.append(list(result) if isinstance(result, (list, tuple)) else [result])
        return results

    def compare(self, results, mode):
        for name, found, wanted in zip(self.names, results, self.wanted):
            assert len(found) == len(wanted), (mode, name, len(found))
            for tensor, (array, dtype) in zip(found, wanted):
                tensor = np.asarray(tensor.numpy() if hasattr(tensor, "numpy") else tensor)
                assert tensor.dtype == dtype.as_numpy_dtype, (mode, name, tensor.dtype, dtype)
                assert tensor.shape == np.shape(array), (mode, name, tensor.shape, np.shape(array))
                got, tolerance = tensor.astype(np.float64), TOLERANCE.get(dtype, 0)
                largest = max(1.0, np.abs(array).max(initial=0))
                assert np.abs(got - array).max(initial=0) <= tolerance * largest, (mode, name, got, array)

    def check(self, members):
        """Raise AssertionError unless each result is the expected one. All ranks' cases are many, and AutoGraph takes
        a sixth of their time; with the smaller sets each operation has it, as in programs."""
        eager = self.run([[tf.constant(a) for a in arrays] for arrays in self.fed], True)
        self.compare(eager, "eager")
        function = tf.function(lambda fed: self.run(fed, False), autograph=members is not ALL)
        for _ in range(2):
            self.compare(function([[tf.constant(a) for a in arrays] for arrays in self.fed]), "function")
        with tf.Graph().as_default():
            holders = [[v1.placeholder(a.dtype, [None] * a.ndim) for a in arrays] for arrays in self.fed]
            fetches = self.run(holders, False)
            feed = {h: a for hs, arrays in zip(holders, self.fed) for h, a in zip(hs, arrays)}
            with v1.Session() as session:
                for _ in range(2):
                    self.compare(session.run(fetches, feed), "graph")


def name_of(*words):
    return "_".join(
        str(word).replace(" ", "").replace("(", "").replace(")", "").replace(",", "x") for word in words
    )


def some_of(process_set, items):
    return items if process_set is ALL else items[::3]


def some_with(process_set, items, turn):
    """The cases of one dtype: a third of them, in turns, where the set has one rank because there is only one."""
    return items[turn % 3 :: 3] if hvd.size() == 1 else some_of(process_set, items)


def number(process_set):
    return process_set.process_set_id


def test_allreduce():
    """Each two of dtype, operation and shape meet, and each dtype and operation that can be scaled has the factors."""
    names = list(OPS)
    scaled = [("Sum", (5, 7), (0.5, 3.0)), ("Average", (5, 7), (0.5, 3.0))]
    for members in sets():
        cases = Cases()
        for i, dtype in enumerate(some_of(members, TYPES)):
            plain = [(names[(i + j) % len(names)], shape, (1.0, 1.0)) for j, shape in enumerate(SHAPES)]
            for k, (op_name, shape, factors) in enumerate(some_with(members, [*plain, *scaled], i), 10 * i):
                cases.add(
                    name_of("allreduce", number(members), dtype.name, op_name, shape, factors),
                    [given(hvd.rank(), shape, dtype, k)],
                    lambda t, name, o=OPS[op_name], f=factors, p=members: mpi_ops._allreduce(
                        t[0], name, o, f[0], f[1], process_set=p
                    ),
                    (reduced(OPS[op_name], members.ranks, shape, dtype, *factors, seed=k), dtype),
                )
        cases.check(members)


def test_factors_are_doubles():
    third = 1.0 / 3.0
    found = mpi_ops._allreduce(tf.constant([3.0], tf.float64), prescale_factor=third, postscale_factor=0.1)
    assert abs(found.numpy()[0] - hvd.size() * 0.1) < 1e-15 * hvd.size(), found


def test_grouped_allreduce():
    for members in sets():
        cases = Cases()
        for k, (op_name, op) in enumerate(OPS.items()):
            kinds = [(dtype, shape) for dtype, shape in zip(TYPES, SHAPES * 2)]
            cases.add(
                name_of("grouped", number(members), op_name),
                [given(hvd.rank(), shape, dtype, k) for dtype, shape in kinds],
                lambda t, name, o=op, p=members: mpi_ops._grouped_allreduce(t, name, o, process_set=p),
                *((reduced(op, members.ranks, shape, dtype, seed=k), dtype) for dtype, shape in kinds),
            )
        cases.check(members)


def gathered(members, rows, tail, dtype, seed):
    return np.concatenate([values(r, (rows(r), *tail), dtype, seed) for r in members.ranks])


def test_allgather():
    for members in sets():
        cases, k = Cases(), 0
        for dtype in some_of(members, MOVED):
            for words, rows in ROWS.items():
                tail = TAILS[k % len(TAILS)]
                k += 1
                cases.add(
                    name_of("allgather", number(members), dtype.name, words, tail),
                    [given(hvd.rank(), (rows(hvd.rank()), *tail), dtype, k)],
                    lambda t, name, p=members: hvd.allgather(t[0], name, process_set=p),
                    (gathered(members, rows, tail, dtype, k), dtype),
                )
        for k, (words, rows) in enumerate(ROWS.items()):
            kinds = [(dtype, TAILS[i % 3]) for i, dtype in enumerate(MOVED)]
            cases.add(
                name_of("grouped_allgather", number(members), words),
                [given(hvd.rank(), (rows(hvd.rank()), *tail), dtype, k) for dtype, tail in kinds],
                lambda t, name, p=members: hvd.grouped_allgather(t, name, process_set=p),
                *((gathered(members, rows, tail, dtype, k), dtype) for dtype, tail in kinds),
            )
        cases.check(members)


def test_broadcast():
    for members in sets():
        cases = Cases()
        for k, dtype in enumerate(some_of(members, MOVED)):
            for i, shape in enumerate(some_with(members, SHAPES, k)):
                root = members.ranks[(i + k) % len(members.ranks)]
                cases.add(
                    name_of("broadcast", number(members), dtype.name, shape),
                    [given(hvd.rank(), shape, dtype, k)],
                    lambda t, name, r=root, p=members: hvd.broadcast(t[0], r, name, process_set=p),
                    (values(root, shape, dtype, k), dtype),
                )
        cases.check(members)


def test_alltoall():
    for members in sets():
        cases, n, place = Cases(), len(members.ranks), members.rank()
        for k, dtype in enumerate(some_of(members, MOVED)):
            tail = TAILS[k % len(TAILS)]
            blocks = [values(r, (2 * n, *tail), dtype, k)[2 * place : 2 * place + 2] for r in members.ranks]
            cases.add(
                name_of("alltoall", number(members), dtype.name, tail),
                [given(hvd.rank(), (2 * n, *tail), dtype, k)],
                lambda t, name, p=members: hvd.alltoall(t[0], None, name, process_set=p),
                (np.concatenate(blocks), dtype),
            )
            # Rank r sends r + j rows to the j-th member; one row is not sent.
            splits = {r: [r + j for j in range(n)] for r in members.ranks}
            parts = []
            for r in members.ranks:
                begin = sum(splits[r][:place])
                all_rows = values(r, (sum(splits[r]) + 1, *tail), dtype, k)
                parts.append(all_rows[begin : begin + splits[r][place]])
            kind = tf.int64 if k % 2 else tf.int32
            cases.add(
                name_of("alltoall_splits", number(members), dtype.name, tail),
                [
                    given(hvd.rank(), (sum(splits[hvd.rank()]) + 1, *tail), dtype, k),
                    np.array(splits[hvd.rank()], kind.as_numpy_dtype),
                ],
                lambda t, name, p=members: hvd.alltoall(t[0], t[1], name, process_set=p),
                (np.concatenate(parts), dtype),
                (np.array([splits[r][place] for r in members.ranks], np.float64), kind),
            )
        cases.check(members)


def scattered(op, members, shape, dtype, seed):
    every = reduced(op, members.ranks, shape, dtype, seed=seed)
    return np.array_split(every, len(members.ranks))[members.rank()]


def test_reducescatter():
    for members in sets():
        cases = Cases()
        shapes = ((7, 3), (1,), (0, 2), (2 * len(members.ranks),))
        for k, dtype in enumerate(some_of(members, TYPES)):
            for i, shape in enumerate(shapes):  # each two of dtype, operation and shape meet
                op = (hvd.Sum, hvd.Average)[(i + k) % 2]
                cases.add(
                    name_of("reducescatter", number(members), dtype.name, op, shape),
                    [given(hvd.rank(), shape, dtype, k)],
                    lambda t, name, o=op, p=members: mpi_ops._reducescatter(t[0], name, o, process_set=p),
                    (scattered(op, members, shape, dtype, k), dtype),
                )
        kinds = [(dtype, (k + 1, 2)) for k, dtype in enumerate(TYPES)]
        cases.add(
            name_of("grouped_reducescatter", number(members)),
            [given(hvd.rank(), shape, dtype) for dtype, shape in kinds],
            lambda t, name, p=members: mpi_ops._grouped_reducescatter(t, name, process_set=p),
            *((scattered(hvd.Sum, members, shape, dtype, 0), dtype) for dtype, shape in kinds),
        )
        cases.check(members)


def test_broadcast_of_variables():
    kinds = [
        (dtype, shape) for dtype in (tf.float32, tf.float64, tf.int32, tf.int64) for shape in ((), (3, 2))
    ]
    root = hvd.size() - 1
    variables = [tf.Variable(given(hvd.rank(), shape, dtype)) for dtype, shape in kinds]
    for results in (hvd.broadcast_(variables, root), variables):
        for found, (dtype, shape) in zip(results, kinds):
            assert np.array_equal(found.numpy(), given(root, shape, dtype)), (dtype, shape, found)
    assert hvd.broadcast_([], root) == []
    with tf.Graph().as_default(), v1.Session() as session:
        for resource in (True, False):
            both = [
                v1.Variable(given(hvd.rank(), shape, dtype), use_resource=resource) for dtype, shape in kinds
            ]
            session.run(v1.global_variables_initializer())
            session.run(hvd.broadcast_(both, root, name=f"variables_{resource}"))
            for found, (dtype, shape) in zip(session.run(both), kinds):
                assert np.array_equal(found, given(root, shape, dtype)), (resource, dtype, shape, found)


def test_facts():
    wanted = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), 1, -3]

    def facts():
        asked = [hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op()]
        return [*asked, hvd.process_set_included_op(), hvd.process_set_included_op(99)]

    for run in (facts, tf.function(facts), tf.function(facts, jit_compile=True)):
        assert [int(fact) for fact in run()] == wanted, [int(fact) for fact in run()]
    for members in sets():
        assert int(hvd.size_op(members.process_set_id)) == len(members.ranks)


def test_join_and_barrier():
    for _ in range(3):
        hvd.barrier()
    if hvd.rank() == 0:
        found = mpi_ops._allreduce(tf.ones([3]), "while others have joined")
        assert np.array_equal(found.numpy(), np.ones(3)), found  # ranks that have joined contribute zeros
    assert 0 <= int(hvd.join()) < hvd.size()
    function = tf.function(lambda: hvd.join())
    assert 0 <= int(function()) < hvd.size()
    for members in sets():
        tf.function(lambda p=members: hvd.barrier(p))()
    with tf.Graph().as_default(), v1.Session() as session:
        session.run(hvd.barrier())
