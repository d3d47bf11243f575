"""Helpers of the tests of horovod.tensorflow."""

import contextlib
import functools
import re

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd

v1 = tf.compat.v1

# tf.function for tests whose subject is not AutoGraph, which takes longer than the trace of a small function. The
# tests of operations on process sets (test_tf_ops.py) and of graphs, and the programs, have AutoGraph, as users have
# it.
graph_function = functools.partial(tf.function, autograph=False)


def eagerly_and_as_function(function):
    """The function itself, and the function as a graph: ``for run in eagerly_and_as_function(f): run()``."""
    return function, graph_function(function)


def eagerly_and_in_one_function(calls):
    """The lists of the results of all `calls`: eagerly, and of one function with all of them, as TensorFlow needs longer
    to make a function than to call it."""
    yield [call() for call in calls]
    yield graph_function(lambda: [call() for call in calls])()


def keras_3():
    return hasattr(tf.keras, "ops")


def last_rank():
    return hvd.size() - 1


def total_of_ranks():
    """The sum over all ranks of the number of the rank + 1."""
    return sum(range(1, hvd.size() + 1))


def data(rank, *shape, seed=0):
    """Values that depend on the rank, on the place and on `seed`: float64, between -1 and 1."""
    return np.random.RandomState(1000 * seed + rank).uniform(-1, 1, shape)


def near(found, wanted, tolerance=1e-5):
    """Raise AssertionError unless two arrays have one shape and nearly the same values."""
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    assert found.shape == wanted.shape, (found.shape, wanted.shape)
    error = np.abs(found - wanted).max(initial=0)
    assert error <= tolerance * max(1, np.abs(wanted).max(initial=0)), (error, found, wanted)


def raises(kind, text, function):
    """Raise AssertionError unless the call raises an exception of this kind whose text matches `text`, as a regex."""
    try:
        result = function()
    except kind as error:
        assert re.search(text, str(error)), str(error)
        return error
    raise AssertionError(f"{kind} was not raised, but {result!r} returned")


@contextlib.contextmanager
def job_with(*process_sets):
    """A context in which Horovod runs with these process sets; restarts it without them afterwards."""
    hvd.shutdown()
    hvd.init(process_sets=list(process_sets))
    yield
    hvd.allgather_object(None)  # a rank that shuts down ends the job for all
    hvd.shutdown()
    hvd.init()


def same_everywhere(values, name):
    """Raise AssertionError unless all ranks have the same bits."""
    for array in hvd.allgather_object([np.asarray(v) for v in values], name=name):
        for mine, theirs in zip(values, array):
            assert np.array_equal(np.asarray(mine), theirs), (name, mine, theirs)


def adasum(vectors):
    """Adasum of the ranks' vectors, in float64: pairs at distance 1, 2, 4...; vectors of ranks beyond the largest power
    of two are first combined with those of the first ranks."""
    values = [np.asarray(v, np.float64) for v in vectors]
    power = 1 << (len(values).bit_length() - 1)
    for extra in range(power, len(values)):
        values[extra - power] = _pair(values[extra - power], values[extra])
    values = values[:power]
    while len(values) > 1:
        values = [_pair(a, b) for a, b in zip(values[::2], values[1::2])]
    return values[0]


def _pair(a, b):
    dot, aa, bb = (a * b).sum(), (a * a).sum(), (b * b).sum()
    return (1 - dot / (2 * aa) if aa else 1) * a + (1 - dot / (2 * bb) if bb else 1) * b
