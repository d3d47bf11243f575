"""The gradient tapes. Gradients are compared with NumPy, in float64."""

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from tf_parts import SHAPES, agree, gradients, loss, mean_slopes, slopes, variables
from tf_support import (
    eagerly_and_as_function,
    eagerly_and_in_one_function,
    graph_function,
    near,
    raises,
    same_everywhere,
)

pytestmark = pytest.mark.ranks(1, 2, framework="tensorflow")
# A tape of one rank reduces nothing, so no names and no other ranks' graphs matter.
not_on_one_rank = pytest.mark.ranks(2, framework="tensorflow")


def test_average():
    parts = variables()
    for run in eagerly_and_as_function(lambda: gradients(parts)):
        for _ in range(3):
            agree(run(), mean_slopes())
        same_everywhere(run(), "tape.average")


def test_options():
    parts = variables()
    total = [hvd.size() * m for m in mean_slopes()]
    cases = (
        ({"op": hvd.Sum}, total, 1e-5),
        ({"gradient_predivide_factor": 4.0}, mean_slopes(), 1e-5),
        ({"compression": hvd.Compression.fp16}, mean_slopes(), 2e-3),
        ({"compression": hvd.Compression.bf16}, mean_slopes(), 2e-2),
        ({"groups": 1}, mean_slopes(), 1e-5),
        ({"groups": 3, "op": hvd.Sum}, total, 1e-5),
        ({"groups": 100}, mean_slopes(), 1e-5),
        ({"groups": [[parts[3], parts[0]], [parts[1]]]}, mean_slopes(), 1e-5),
        ({"groups": 2, "gradient_predivide_factor": 2.0}, mean_slopes(), 1e-5),
        ({"device_dense": "/cpu:0", "device_sparse": "/cpu:0"}, mean_slopes(), 1e-5),
    )
    calls = [lambda o=options: gradients(parts, **o) for options, _, _ in cases]
    for results in eagerly_and_in_one_function(calls):
        for found, (_, wanted, tolerance) in zip(results, cases, strict=True):
            agree(found, wanted, tolerance)


def test_bad_options():
    tape = tf.GradientTape()
    raises(
        ValueError, "op != Average", lambda: gradients(variables(), op=hvd.Sum, gradient_predivide_factor=2.0)
    )
    raises(ValueError, "non-negative integer", lambda: hvd.DistributedGradientTape(tape, groups="two"))
    raises(ValueError, "lists of tf.Variable", lambda: hvd.DistributedGradientTape(tape, groups=[[1, 2]]))
    part = tf.Variable(1.0)
    raises(ValueError, "only appear once", lambda: hvd.DistributedGradientTape(tape, groups=[[part], [part]]))
    raises(ValueError, "Keras layer", lambda: hvd.PartialDistributedGradientTape(tape, local_layers=[part]))
    strange = hvd.ProcessSet([0])
    raises(ValueError, "not been registered", lambda: gradients(variables(), process_set=strange))


def test_it_is_a_tape():
    plain = tf.GradientTape()
    tape = hvd.DistributedGradientTape(plain)
    assert isinstance(tape, tf.GradientTape) and type(tape).__name__ == "GradientTape"
    assert type(hvd.DistributedGradientTape(tf.GradientTape())) is type(tape)

    class Mine(tf.GradientTape):
        pass

    assert isinstance(hvd.DistributedGradientTape(Mine()), Mine)


def test_wrapped_before_within_and_after():
    parts = variables()
    with hvd.DistributedGradientTape(tf.GradientTape()) as before:
        target = loss(parts)
    agree(before.gradient(target, parts), mean_slopes())
    with tf.GradientTape() as tape:
        target = loss(parts)
        within = hvd.DistributedGradientTape(tape)
    agree(within.gradient(target, parts), mean_slopes())
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
        tape.watch(parts[:2])
        target = loss(parts)
    after = hvd.DistributedGradientTape(tape)
    for _ in range(2):
        found = after.gradient(target, parts)
        agree(found[:2], mean_slopes()[:2])
        assert found[2:] == [None, None]
    agree(tape.gradient(target, parts[:2]), slopes(hvd.rank())[:2])


def test_structures_of_sources():
    parts = variables()
    with tf.GradientTape(persistent=True) as tape:
        target = loss(parts)
    tape = hvd.DistributedGradientTape(tape)
    single = tape.gradient(target, parts[1])
    near(single, mean_slopes()[1])
    nested = tape.gradient(target, {"a": parts[0], "b": (parts[1], parts[2])})
    near(nested["a"], mean_slopes()[0])
    agree(nested["b"], mean_slopes()[1:3])
    weighted = tape.gradient([target], parts, output_gradients=[tf.constant(2.0)])
    agree(weighted, [2 * m for m in mean_slopes()])
    assert tape.gradient(target, []) == []


@not_on_one_rank
def test_generic_names():
    parts = variables()

    @tf.function  # with AutoGraph, as users write it
    def run():
        with tf.GradientTape() as tape:
            target = loss(parts)
        tape = hvd.DistributedGradientTape(tape)
        return tape.gradient(target, parts, None, True)

    agree(run(), mean_slopes())
    agree(run(), mean_slopes())


def test_local_sources():
    parts = variables()
    for scaled in (True, False):

        def run(scaled=scaled):
            with tf.GradientTape() as tape:
                target = loss(parts)
            tape = hvd.DistributedGradientTape(tape, scale_local_gradients=scaled)
            tape.register_local_source(parts[0])
            tape.register_local_source([parts[3]])
            local, shared = tape.get_local_and_global_gradients(target, parts)
            assert [id(v) for v, _ in local] == [id(parts[0]), id(parts[3])]
            assert [id(v) for v, _ in shared] == [id(parts[1]), id(parts[2])]
            return [g for _, g in local], [g for _, g in shared]

        for one in eagerly_and_as_function(run):
            local, shared = one()
            agree(local, [slopes(hvd.rank())[i] / (hvd.size() if scaled else 1) for i in (0, 3)])
            agree(shared, mean_slopes()[1:3])


def test_unconnected_gradients():
    parts = variables()
    partly = [parts[0], None, parts[2], None]

    def run(**options):
        with tf.GradientTape() as tape:
            target = loss(partly)
        found = hvd.DistributedGradientTape(tape, **options).gradient(target, parts)
        assert found[1] is None and found[3] is None
        return [found[0], found[2]]

    options = ({}, {"groups": 2}, {"groups": [parts]}, {"op": hvd.Adasum})
    for all_of in eagerly_and_as_function(lambda: [run(**o) for o in options]):
        for _ in range(2):
            found = all_of()
        agree(found[0], [mean_slopes()[0], mean_slopes()[2]])
    with tf.GradientTape() as tape:
        target = loss(partly)
    zeros = hvd.DistributedGradientTape(tape).gradient(
        target, parts, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    near(zeros[1], np.zeros(SHAPES[1]))
    with tf.GradientTape() as tape:
        target = loss(partly)
    assert hvd.DistributedGradientTape(tape).gradient(target, [parts[1], parts[3]]) == [None, None]


@not_on_one_rank
def test_ranks_whose_graphs_differ():
    """Rank 0 has more operations in its graph, as with summaries. The names of later operations do not depend on them."""
    parts = variables()

    @graph_function
    def run():
        if hvd.rank() == 0:
            for i in range(3):
                tf.reduce_sum(tf.identity(parts[i]) * 2.0)
        first = gradients(parts)
        if hvd.rank() == 0:
            tf.print(tf.linalg.global_norm(first), output_stream="file:///dev/null")
        return first + gradients(parts, op=hvd.Sum)

    for _ in range(3):
        agree(run(), mean_slopes() + [hvd.size() * m for m in mean_slopes()])


@not_on_one_rank
def test_several_tapes_in_one_function():
    ours, theirs = variables(), variables()

    @graph_function
    def run():
        with tf.GradientTape() as a, tf.GradientTape() as b:
            first, second = loss(ours), 3 * loss(theirs)
        a, b = hvd.DistributedGradientTape(a), hvd.DistributedGradientTape(b)
        grads = tf.cond(  # has a graph of its own
            tf.reduce_sum(ours[0]) > 0,
            lambda: b.gradient(second, theirs),
            lambda: [tf.zeros_like(v) for v in theirs],
        )
        return a.gradient(first, ours), grads

    for _ in range(3):
        a, b = run()
        agree(a, mean_slopes())
        agree(b, [3 * m for m in mean_slopes()])


@not_on_one_rank
def test_jacobians_are_this_ranks():
    part = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        target = part * part * float(hvd.rank() + 1)
    found = hvd.DistributedGradientTape(tape).jacobian(target, part)
    near(found, np.diag([2.0, 4.0]) * (hvd.rank() + 1))
