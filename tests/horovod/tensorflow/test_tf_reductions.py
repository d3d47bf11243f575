"""The public allreduce, reducescatter and their groups: arguments, compression, tf.IndexedSlices. Types, shapes and modes
are tested by test_tf_ops.py."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from tf_support import adasum, data, eagerly_and_as_function, eagerly_and_in_one_function, near, raises

pytestmark = pytest.mark.ranks(2, framework="tensorflow")


def summed():
    """The sum of mine() of all ranks."""
    return sum(data(r, 3, 4) for r in range(hvd.size()))


def mine():
    return tf.constant(data(hvd.rank(), 3, 4), tf.float32)


def test_op_and_average():
    cases = (
        ({}, summed() / hvd.size()),
        ({"op": hvd.Average}, summed() / hvd.size()),
        ({"op": hvd.Sum}, summed()),
        ({"op": hvd.Sum, "prescale_factor": 0.5, "postscale_factor": 3.0}, 1.5 * summed()),
        ({"op": hvd.Min}, np.min([data(r, 3, 4) for r in range(hvd.size())], axis=0)),
        ({"op": hvd.Max}, np.max([data(r, 3, 4) for r in range(hvd.size())], axis=0)),
        ({"op": hvd.Product}, np.prod([data(r, 3, 4) for r in range(hvd.size())], axis=0)),
        ({"op": hvd.Adasum}, adasum([data(r, 3, 4) for r in range(hvd.size())])),
        ({"device_dense": "/cpu:0", "name": "named"}, summed() / hvd.size()),
    )
    calls = [lambda o=options: hvd.allreduce(mine(), **o) for options, _ in cases]
    for results in eagerly_and_in_one_function(calls):
        for found, (_, wanted) in zip(results, cases, strict=True):
            near(found, wanted)
    for average, wanted in (
        (True, summed() / hvd.size()),
        (False, summed()),
        ("a name in the second place", summed() / hvd.size()),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            near(hvd.allreduce(mine(), average), wanted)
        assert any(issubclass(w.category, DeprecationWarning) for w in caught)
    raises(ValueError, "supersedes", lambda: hvd.allreduce(mine(), average=True, op=hvd.Sum))
    near(hvd.allreduce([1.0 * hvd.rank(), 2.0], op=hvd.Sum), [sum(range(hvd.size())), 2.0 * hvd.size()])
    near(hvd.allreduce(tf.Variable(float(hvd.rank())), op=hvd.Sum), sum(range(hvd.size())))
    near(hvd.allreduce(np.float32(hvd.rank()), op=hvd.Sum), sum(range(hvd.size())))


def test_compression():
    for kind, tolerance in ((hvd.Compression.fp16, 2e-3), (hvd.Compression.bf16, 2e-2)):
        for dtype in (tf.float32, tf.float64):
            found = hvd.allreduce(tf.cast(mine(), dtype), compression=kind)
            assert found.dtype == dtype
            near(found, summed() / hvd.size(), tolerance)
            assert np.abs(found.numpy() - summed() / hvd.size()).max() > 1e-7, "nothing was compressed"
        (found,) = hvd.grouped_allreduce([mine()], compression=kind)
        near(found, summed() / hvd.size(), tolerance)
        whole = hvd.allreduce(tf.constant([2**20 + hvd.rank()]), op=hvd.Sum, compression=kind)
        assert whole.numpy().tolist() == [2**20 * hvd.size() + sum(range(hvd.size()))]
        sent, context = kind.compress(tf.constant([1.0], tf.float16))
        assert sent.dtype == tf.float16 and context is None


def test_a_compressor_of_ones_own():
    class Halved(hvd.compression.Compressor):
        @staticmethod
        def compress(tensor):
            return tensor / 2, 2.0

        @staticmethod
        def decompress(tensor, ctx):
            return tensor * ctx

    near(hvd.allreduce(mine(), compression=Halved, op=hvd.Sum), summed())


def test_groups():
    def run():
        return hvd.grouped_allreduce(
            [mine(), tf.cast(mine(), tf.float64), tf.constant([hvd.rank()])], op=hvd.Sum
        )

    for one in eagerly_and_as_function(run):
        found = one()
        near(found[0], summed())
        near(found[1], summed())
        assert found[1].dtype == tf.float64 and found[2].numpy().tolist() == [sum(range(hvd.size()))]
    assert hvd.grouped_allreduce([]) == []
    for found in hvd.grouped_allreduce([mine(), mine()], True):
        near(found, summed() / hvd.size())


def slices(rank, rows=2):
    return tf.IndexedSlices(
        tf.constant(data(rank, rows, 3), tf.float32),
        tf.constant([(rank + k) % 5 for k in range(rows)], tf.int64),
        dense_shape=tf.constant([5, 3], tf.int64),
    )


def dense(counts):
    total = np.zeros((5, 3))
    for r in range(hvd.size()):
        for k in range(counts[r]):
            total[(r + k) % 5] += data(r, counts[r], 3)[k]
    return total


def test_indexed_slices():
    cases = [
        (counts, op, factor)
        for counts in (
            [2] * hvd.size(),
            [1 + r for r in range(hvd.size())],
            [3 * (r == 0) for r in range(hvd.size())],
        )
        for op, factor in ((hvd.Sum, 1), (hvd.Average, 1 / hvd.size()))
    ]
    calls = [
        lambda n=counts[hvd.rank()], op=op: hvd.allreduce(
            slices(hvd.rank(), n), op=op, device_sparse="/cpu:0"
        )
        for counts, op, _ in cases
    ]
    for results in eagerly_and_in_one_function(calls):
        for found, (counts, _, factor) in zip(results, cases, strict=True):
            assert isinstance(found, tf.IndexedSlices) and found.dense_shape.numpy().tolist() == [5, 3]
            assert found.values.shape[0] == sum(counts)
            near(tf.convert_to_tensor(found), dense(counts) * factor)
    types = ((tf.int32, tf.float64), (tf.int64, tf.float64), (tf.float32, tf.float32))
    whole = [
        tf.IndexedSlices(
            tf.constant([hvd.rank() + 1], dtype), tf.constant([hvd.rank()]), tf.constant([hvd.size()])
        )
        for dtype, _ in types
    ]
    for results in eagerly_and_in_one_function([lambda each=each: hvd.allreduce(each) for each in whole]):
        for found, (_, floats) in zip(results, types, strict=True):
            assert found.values.dtype == floats, found.values
            near(found.values, [(r + 1) / hvd.size() for r in range(hvd.size())])
    for each, (dtype, _) in zip(whole, types, strict=True):
        assert hvd.allreduce(each, op=hvd.Sum).values.dtype == dtype
    mixed = hvd.grouped_allreduce([mine(), slices(hvd.rank()), mine()], op=hvd.Sum)
    near(mixed[0], summed())
    near(tf.convert_to_tensor(mixed[1]), dense([2] * hvd.size()))
    near(mixed[2], summed())
    for text, options in (
        ("Adasum", {"op": hvd.Adasum}),
        ("Average and Sum", {"op": hvd.Max}),
        ("prescale_factor", {"prescale_factor": 2.0}),
    ):
        raises(NotImplementedError, text, lambda o=options: hvd.allreduce(slices(hvd.rank()), **o))
        raises(
            NotImplementedError,
            text,
            lambda o=options: hvd.grouped_allreduce([mine(), slices(hvd.rank())], **o),
        )
    raises(NotImplementedError, "IndexedSlices", lambda: hvd.reducescatter(slices(hvd.rank())))


def share(total):
    length, longer = divmod(len(total), hvd.size())
    start = hvd.rank() * length + min(hvd.rank(), longer)
    return total[start : start + length + (longer > hvd.rank())]


def test_reducescatter():
    cases = (
        ({}, summed() / hvd.size()),
        ({"op": hvd.Sum}, summed()),
        ({"op": hvd.Sum, "prescale_factor": 0.5, "postscale_factor": 3.0}, 1.5 * summed()),
        ({"name": "scattered", "device_dense": "/cpu:0"}, summed() / hvd.size()),
    )
    calls = [lambda o=options: hvd.reducescatter(mine(), **o) for options, _ in cases]
    for results in eagerly_and_in_one_function(calls):
        for found, (_, wanted) in zip(results, cases, strict=True):
            near(found, share(wanted))
    found = hvd.reducescatter(mine(), compression=hvd.Compression.fp16)
    assert found.dtype == tf.float32
    near(found, share(summed() / hvd.size()), 2e-3)
    for found in hvd.grouped_reducescatter([mine(), tf.cast(mine(), tf.float64)], op=hvd.Sum):
        near(found, share(summed()))
    assert hvd.grouped_reducescatter([]) == []
    raises(NotImplementedError, "Adasum", lambda: hvd.reducescatter(mine(), op=hvd.Adasum))


def test_gradients():
    def run():
        x = mine()
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            reduced = tf.reduce_sum(
                hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.fp16) * (hvd.rank() + 1.0)
            )
            scattered = tf.reduce_sum(hvd.reducescatter(x, op=hvd.Average)) * (hvd.rank() + 1.0)
        return tape.gradient(reduced, x), tape.gradient(scattered, x)

    rows = np.concatenate(
        [np.full((3 // hvd.size() + (r < 3 % hvd.size()), 4), r + 1.0) for r in range(hvd.size())]
    )
    for one in eagerly_and_as_function(run):
        of_reduced, of_scattered = one()
        near(of_reduced, np.full((3, 4), sum(r + 1.0 for r in range(hvd.size()))), 1e-3)
        near(of_scattered, rows)


def test_run_time_numbers():
    @tf.function
    def run():
        return (
            hvd.size_op(),
            hvd.rank_op(),
            hvd.local_size_op(),
            hvd.local_rank_op(),
            hvd.process_set_included_op(),
        )

    assert [n.numpy() for n in run()] == [hvd.size(), hvd.rank(), hvd.local_size(), hvd.local_rank(), 1]


def test_names_that_other_programs_import():
    for name in (
        *("_executing_eagerly", "_make_subgraph", "_cache", "vars_to_refs", "refs_to_vars", "gpu_available"),
        *("_make_allreduce_grads_fn", "_make_cached_allreduce_grads_fn", "_allreduce_cond"),
        *("_grouped_allreduce_cond", "_allreduce", "_grouped_allreduce", "_reducescatter"),
        *("_grouped_reducescatter", "check_num_rank_power_of_2", "handle_average_backwards_compatibility"),
    ):
        assert callable(getattr(hvd, name)), name
    missing = [name for name in hvd.__all__ if not hasattr(hvd, name)]
    assert not missing, missing
    variable = tf.Variable(1.0)
    refs = hvd.vars_to_refs([variable, [variable]])
    assert hash(refs) and hvd.refs_to_vars(refs)[1][0] is variable
    reduce = hvd._make_allreduce_grads_fn("Mine", "", "", hvd.Compression.none, False, hvd.Sum)
    near(reduce([tf.constant(1.0 + hvd.rank())], [variable])[0], sum(r + 1.0 for r in range(hvd.size())))
    near(hvd._allreduce_cond(tf.constant(1.0), op=hvd.Sum), hvd.size())
    calls = []
    remembered = hvd._cache(lambda x: calls.append(x) or x)
    assert remembered(1) == remembered(1) == 1 and calls == [1]
    assert hvd._make_subgraph(lambda: tf.constant(hvd.rank()) + 1)().numpy() == hvd.rank() + 1
