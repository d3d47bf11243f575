"""The gradient tapes where ranks differ; Adasum, tf.IndexedSlices, process sets and XLA."""

import functools
import os
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from tf_parts import SHAPES, agree, gradients, loss, mean_slopes, slopes, variables
from tf_support import (
    adasum,
    data,
    eagerly_and_as_function,
    eagerly_and_in_one_function,
    graph_function,
    job_with,
    near,
    raises,
)

# On three ranks two agree where one differs, and Adasum has a rank beyond a power of two.
pytestmark = pytest.mark.ranks(3, framework="tensorflow")
on_two_ranks = pytest.mark.ranks(2, framework="tensorflow")


def test_adasum():
    parts = variables()
    wanted = [adasum([slopes(r)[i] for r in range(hvd.size())]) for i in range(len(SHAPES))]
    options = ({}, {"groups": 2}, {"compression": hvd.Compression.none})
    calls = [lambda o=each: gradients(parts, op=hvd.Adasum, **o) for each in options]
    for results in eagerly_and_in_one_function(calls):
        for found in results:
            agree(found, wanted)


@functools.cache
def embedding_table():
    """A variable that functions use, so there is one of it."""
    with tf.init_scope():  # for a function that is being traced as well
        return tf.Variable(tf.ones([6, 2]))


def embedding_gradient(rows, **options):
    """The gradient of the table whose `rows` are looked up, each weighted by its place + 1."""
    table = embedding_table()
    with tf.GradientTape() as tape:
        found = tf.nn.embedding_lookup(table, tf.constant(rows, tf.int64))
        target = tf.reduce_sum(found * tf.reshape(tf.range(1.0, len(rows) + 1), [-1, 1]))
    return hvd.DistributedGradientTape(tape, **options).gradient(target, table)


def embedding_rows(rank):
    return [rank % 6, 2, (rank + 3) % 6, 2][: 4 - rank % 2]


@on_two_ranks
def test_embeddings():
    wanted = np.zeros((6, 2))
    for r in range(hvd.size()):
        for place, row in enumerate(embedding_rows(r)):
            wanted[row] += place + 1
    dense = {"sparse_as_dense": True}
    cases = (
        ({}, 1 / hvd.size(), tf.IndexedSlices),
        ({"op": hvd.Sum}, 1, tf.IndexedSlices),
        ({"gradient_predivide_factor": 2.0}, 1 / hvd.size(), tf.IndexedSlices),
        (dense, 1 / hvd.size(), tf.Tensor),
        ({**dense, "groups": 1}, 1 / hvd.size(), tf.Tensor),
        ({**dense, "compression": hvd.Compression.none}, 1 / hvd.size(), tf.Tensor),
    )
    calls = [lambda o=options: embedding_gradient(embedding_rows(hvd.rank()), **o) for options, _, _ in cases]
    for results in eagerly_and_in_one_function(calls):
        for found, (_, factor, kind) in zip(results, cases, strict=True):
            assert isinstance(found, kind), found
            near(tf.convert_to_tensor(found), wanted * factor)
    raises(
        NotImplementedError,
        "sparse_as_dense",
        lambda: embedding_gradient(embedding_rows(hvd.rank()), op=hvd.Adasum),
    )


def test_process_sets():
    some, alone = hvd.ProcessSet([0, 1]), hvd.ProcessSet([hvd.size() - 1])
    with job_with(some, alone):
        parts = variables()
        cases = [
            (some, mean_slopes([0, 1]) if hvd.rank() < 2 else slopes(hvd.rank())),
            (alone, slopes(hvd.rank())),
        ] * 2
        calls = [lambda p=members: gradients(parts, process_set=p) for members, _ in cases[:2]]
        calls += [lambda p=members: gradients(parts, process_set=p, groups=2) for members, _ in cases[2:]]
        for results in eagerly_and_in_one_function(calls):
            for found, (_, wanted) in zip(results, cases, strict=True):
                agree(found, wanted)
        with tf.GradientTape() as tape:
            target = loss(parts)
        tape = hvd.DistributedGradientTape(tape, process_set=some)
        tape.register_local_source(parts)
        agree(
            tape.gradient(target, parts),
            [s / 2 for s in slopes(hvd.rank())] if hvd.rank() < 2 else slopes(hvd.rank()),
        )


@on_two_ranks
def test_decided_at_run_time():
    parts = variables()
    with mock.patch.dict(os.environ, {"HOROVOD_ELASTIC": "1"}):
        options = ({}, {"groups": 2}, {"compression": hvd.Compression.fp16})
        for run in eagerly_and_as_function(lambda: [gradients(parts, **o) for o in options]):
            for _ in range(2):
                for found, tolerance in zip(run(), (1e-5, 1e-5, 2e-3), strict=True):
                    agree(found, mean_slopes(), tolerance)
        run = graph_function(lambda: embedding_gradient([hvd.rank(), 1]))
        wanted = np.zeros((6, 2))
        for r in range(hvd.size()):
            wanted[r] += 1 / hvd.size()
            wanted[1] += 2 / hvd.size()
        near(tf.convert_to_tensor(run()), wanted)


@on_two_ranks
def test_in_functions_compiled_by_xla():
    parts = variables()
    partly = [parts[0], None, parts[2], parts[3]]

    @functools.partial(graph_function, jit_compile=True)
    def run():
        with tf.GradientTape() as tape:
            target = loss(partly)
        some = hvd.DistributedGradientTape(tape).gradient(target, parts)
        assert some[1] is None
        return gradients(parts), gradients(parts, groups=2, op=hvd.Sum), [g for g in some if g is not None]

    for _ in range(3):
        means, sums, some = run()
        agree(means, mean_slopes())
        agree(sums, [hvd.size() * m for m in mean_slopes()])
        agree(some, [mean_slopes()[i] for i in (0, 2, 3)])


@on_two_ranks
def test_embeddings_in_functions_compiled_by_xla():
    wanted = np.zeros((6, 2))
    for r in range(hvd.size()):
        for place, row in enumerate(embedding_rows(r)):
            wanted[row] += place + 1
    run = graph_function(
        lambda: tf.convert_to_tensor(embedding_gradient(embedding_rows(hvd.rank()))), jit_compile=True
    )
    near(run(), wanted / hvd.size())


@on_two_ranks
def test_slices_are_tensors_in_functions_compiled_by_xla():
    table = tf.Variable(tf.ones([4, 2]))
    others = (hvd.size() - 1) / hvd.size()
    for op, wanted in ((hvd.Average, [1, others, 1, others]), (hvd.Max, [1, bool(others), 1, bool(others)])):

        @functools.partial(graph_function, jit_compile=True)
        def run(op=op):
            with tf.GradientTape() as tape:
                target = tf.reduce_sum(table if hvd.rank() else tf.gather(table, [0, 2]))
            return tf.convert_to_tensor(hvd.DistributedGradientTape(tape, op=op).gradient(target, [table])[0])

        near(run(), np.outer(wanted, [1, 1]))


def test_ranks_that_differ_in_unconnected_gradients():
    parts = variables()
    partly = [parts[0], None if hvd.rank() == hvd.size() - 1 else parts[1], parts[2], parts[3]]

    def run(**options):
        with tf.GradientTape() as tape:
            target = loss(partly)
        found = hvd.DistributedGradientTape(tape, **options).gradient(target, parts)
        return [g for g in found if g is not None]

    for options in ({}, {"groups": 2}, {"groups": [[parts[1], parts[2]]]}):
        for one in eagerly_and_as_function(lambda o=options: run(**o)):
            raises(tf.errors.FailedPreconditionError, r"shape \[0\]", one)
    partly = parts
    agree(run(), mean_slopes())

    def none_at_all():
        with tf.GradientTape() as tape:
            target = loss(parts) if hvd.rank() else tf.constant(1.0)
        return [g for g in hvd.DistributedGradientTape(tape).gradient(target, parts) if g is not None]

    for one in eagerly_and_as_function(none_at_all):
        raises(tf.errors.FailedPreconditionError, r"shape \[0\]", one)


def test_ranks_that_differ_in_slices():
    """A gradient is tf.IndexedSlices on the first rank only. No rank may wait, and the same step works afterwards."""
    table, part = tf.Variable(tf.ones([4, 2]), name="table"), tf.Variable(tf.ones([3]), name="part")

    def step(kind, with_part, **options):
        with tf.GradientTape() as tape:
            target = tf.reduce_sum(part * part) if with_part else tf.constant(0.0)
            if kind == "slices":
                target += tf.reduce_sum(tf.gather(table, [0, 2]))
            elif kind == "tensor":
                target += tf.reduce_sum(table * table)
        found = hvd.DistributedGradientTape(tape, **options).gradient(target, [table, part])
        return [tf.convert_to_tensor(g) for g in found if g is not None]

    for number, (options, with_part, other) in enumerate(
        (
            ({}, True, "none"),
            ({}, True, "tensor"),
            ({}, False, "none"),
            ({"groups": 1}, False, "tensor"),
            ({"groups": [[table]]}, True, "none"),
        )
    ):

        def differ(o=options, w=with_part, kind=other if hvd.rank() else "slices"):
            return step(kind, w, **o)

        differ.__name__ = f"differ_{number}"
        error = raises(tf.errors.FailedPreconditionError, r"shape \[0, 0\]", differ)
        assert "0 (table)" in str(error), error
        compiled = graph_function(differ)
        for _ in range(2):
            raises(tf.errors.FailedPreconditionError, r"shape \[0, 0\]", compiled)
        # In turns eagerly and as a function, which takes long to make.
        run = eagerly_and_as_function(lambda o=options, w=with_part: step("slices", w, **o))[number % 2]
        for _ in range(2):
            rows, *rest = run()
            near(rows, np.outer([1, 0, 1, 0], [1, 1]))
            agree(rest, [np.full(3, 2.0)] if with_part else [])


def test_a_gradient_that_one_rank_cannot_reduce():
    """The function of one rank cannot be made. The other ranks must not wait for the gradients that it has as well."""
    parts, table = variables(), embedding_table()

    def step(sliced):
        with tf.GradientTape() as tape:
            target = loss(parts) + tf.reduce_sum(tf.gather(table, [0, 2]) if sliced else table)
        return hvd.DistributedGradientTape(tape, op=hvd.Adasum).gradient(target, [*parts, table])

    if hvd.rank() == 0:
        raises(NotImplementedError, "sparse_as_dense", graph_function(lambda: step(True)))
    else:
        raises(tf.errors.InvalidArgumentError, "sparse_as_dense", graph_function(lambda: step(False)))
    wanted = [adasum([slopes(r)[i] for r in range(hvd.size())]) for i in range(4)]
    agree(graph_function(lambda: step(False))()[:4], wanted)


@on_two_ranks
def test_unconnected_sources_that_cannot_be_reduced():
    parts = variables()
    others = [tf.Variable(True), tf.Variable(tf.constant(3, tf.uint32)), tf.Variable("text")]

    def run(**options):
        with tf.GradientTape() as tape:
            target = loss(parts)
        found = hvd.DistributedGradientTape(tape, **options).gradient(target, [*others, *parts])
        assert found[:3] == [None] * 3
        return found[3:]

    for results in eagerly_and_in_one_function([run, lambda: run(groups=2)]):
        for found in results:
            agree(found, mean_slopes())


def test_retraced_on_one_rank():
    """For a last batch of another length this rank traces its function again, with the same names."""
    part = tf.Variable(tf.ones([2]))

    @graph_function
    def run(inputs):
        with tf.GradientTape() as tape:
            target = tf.reduce_sum(inputs * part)
        return hvd.DistributedGradientTape(tape).gradient(target, [part])

    for step in range(4):
        rows = [3 if step != 2 or r == 0 else 2 for r in range(hvd.size())]
        wanted = np.mean([data(r, rows[r], 2, seed=step).sum(0) for r in range(hvd.size())], axis=0)
        near(run(tf.constant(data(hvd.rank(), rows[hvd.rank()], 2, seed=step), tf.float32))[0], wanted)


@on_two_ranks
def test_partial_tape_of_a_keras_model():
    layers = [tf.keras.layers.Dense(3, kernel_initializer="ones"), tf.keras.layers.Dense(1)]
    model = tf.keras.Sequential(layers)
    model.build((None, 2))
    hvd.broadcast_variables(model.variables, root_rank=0)
    inputs = tf.constant(data(hvd.rank(), 5, 2), tf.float32)

    def run(local_layers):
        with tf.GradientTape(persistent=True) as tape:
            target = tf.reduce_sum(model(inputs))
        tape = hvd.PartialDistributedGradientTape(
            tape, local_layers=local_layers, scale_local_gradients=False
        )
        return tape.gradient(target, model.trainable_variables)

    with tf.GradientTape() as tape:
        target = tf.reduce_sum(model(inputs))
    mine = tape.gradient(target, model.trainable_variables)
    everybodys = [np.mean(g, axis=0) for g in zip(*hvd.allgather_object([np.array(g) for g in mine]))]
    agree(run(None), everybodys, 1e-4)
    agree(run(layers[1]), everybodys[:2] + mine[2:], 1e-4)
    agree(run(layers), mine, 1e-4)
