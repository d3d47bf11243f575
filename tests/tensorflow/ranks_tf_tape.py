"""Checks of the gradient tapes, run on every rank by rank_main.py. Gradients are judged against NumPy, in float64."""

import os
from unittest import mock

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd
from tf_support import (
    ME,
    RANKS,
    SIZE,
    adasum,
    data,
    eagerly_and_as_function,
    near,
    raises,
    same_everywhere,
)

SHAPES = [(3, 2), (2,), (4,), ()]


def variables():
    return [tf.Variable(tf.ones(shape), name=f"part_{i}/weight") for i, shape in enumerate(SHAPES)]


def slopes(rank):
    """The gradients of loss() on a rank: of a sum with these factors."""
    return [data(rank, *shape, seed=i) for i, shape in enumerate(SHAPES)]


def loss(parts):
    return tf.add_n(
        [tf.reduce_sum(v * tf.constant(s, tf.float32)) for v, s in zip(parts, slopes(ME)) if v is not None]
    )


def gradients(parts, **options):
    with tf.GradientTape() as tape:
        target = loss(parts)
    return hvd.DistributedGradientTape(tape, **options).gradient(target, parts)


def mean_slopes(ranks=RANKS):
    return [np.mean([slopes(r)[i] for r in ranks], axis=0) for i in range(len(SHAPES))]


def agree(found, wanted, tolerance=1e-5):
    for f, w in zip(found, wanted, strict=True):
        near(f, w, tolerance)


def check_average():
    parts = variables()
    for run in eagerly_and_as_function(lambda: gradients(parts)):
        for _ in range(3):
            agree(run(), mean_slopes())
        same_everywhere(run(), "tape.average")


def check_options():
    parts = variables()
    total = [SIZE * m for m in mean_slopes()]
    for options, wanted, tolerance in (
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
    ):
        for run in eagerly_and_as_function(lambda o=options: gradients(parts, **o)):
            agree(run(), wanted, tolerance)


def check_bad_options():
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


def check_adasum():
    parts = variables()
    wanted = [adasum([slopes(r)[i] for r in RANKS]) for i in range(len(SHAPES))]
    for options in ({}, {"groups": 2}, {"compression": hvd.Compression.none}):
        for run in eagerly_and_as_function(lambda o=options: gradients(parts, op=hvd.Adasum, **o)):
            agree(run(), wanted)


def check_it_is_a_tape():
    plain = tf.GradientTape()
    tape = hvd.DistributedGradientTape(plain)
    assert isinstance(tape, tf.GradientTape) and type(tape).__name__ == "GradientTape"
    assert type(hvd.DistributedGradientTape(tf.GradientTape())) is type(tape)

    class Mine(tf.GradientTape):
        pass

    assert isinstance(hvd.DistributedGradientTape(Mine()), Mine)


def check_wrapped_before_within_and_after():
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
    agree(tape.gradient(target, parts[:2]), slopes(ME)[:2])


def check_structures_of_sources():
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


def check_generic_names():
    parts = variables()

    @tf.function
    def run():
        with tf.GradientTape() as tape:
            target = loss(parts)
        tape = hvd.DistributedGradientTape(tape)
        return tape.gradient(target, parts, None, True)

    agree(run(), mean_slopes())
    agree(run(), mean_slopes())


def check_local_sources():
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
            agree(local, [slopes(ME)[i] / (SIZE if scaled else 1) for i in (0, 3)])
            agree(shared, mean_slopes()[1:3])


def check_partial_tape_of_a_keras_model():
    layers = [tf.keras.layers.Dense(3, kernel_initializer="ones"), tf.keras.layers.Dense(1)]
    model = tf.keras.Sequential(layers)
    model.build((None, 2))
    hvd.broadcast_variables(model.variables, root_rank=0)
    inputs = tf.constant(data(ME, 5, 2), tf.float32)

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


def check_unconnected_gradients():
    parts = variables()
    partly = [parts[0], None, parts[2], None]

    def run(**options):
        with tf.GradientTape() as tape:
            target = loss(partly)
        found = hvd.DistributedGradientTape(tape, **options).gradient(target, parts)
        assert found[1] is None and found[3] is None
        return [found[0], found[2]]

    for options in ({}, {"groups": 2}, {"groups": [parts]}, {"op": hvd.Adasum}):
        for one in eagerly_and_as_function(lambda o=options: run(**o)):
            for _ in range(2):
                found = one()
            if not options:
                agree(found, [mean_slopes()[0], mean_slopes()[2]])
    with tf.GradientTape() as tape:
        target = loss(partly)
    zeros = hvd.DistributedGradientTape(tape).gradient(
        target, parts, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    near(zeros[1], np.zeros(SHAPES[1]))
    with tf.GradientTape() as tape:
        target = loss(partly)
    assert hvd.DistributedGradientTape(tape).gradient(target, [parts[1], parts[3]]) == [None, None]


def check_ranks_that_differ_in_unconnected_gradients():
    if SIZE == 1:
        return
    parts = variables()
    partly = [parts[0], None if ME == SIZE - 1 else parts[1], parts[2], parts[3]]

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


def check_ranks_whose_graphs_differ():
    """Rank 0 has more in its graph, as with summaries: the names of what follows must not depend on it."""
    parts = variables()

    @tf.function
    def run():
        if ME == 0:
            for i in range(3):
                tf.reduce_sum(tf.identity(parts[i]) * 2.0)
        first = gradients(parts)
        if ME == 0:
            tf.print(tf.linalg.global_norm(first), output_stream="file:///dev/null")
        return first + gradients(parts, op=hvd.Sum)

    for _ in range(3):
        agree(run(), mean_slopes() + [SIZE * m for m in mean_slopes()])


def check_retraced_on_one_rank():
    """A last batch of another length makes this rank's function anew, under the same names."""
    part = tf.Variable(tf.ones([2]))

    @tf.function
    def run(inputs):
        with tf.GradientTape() as tape:
            target = tf.reduce_sum(inputs * part)
        return hvd.DistributedGradientTape(tape).gradient(target, [part])

    for step in range(4):
        rows = [3 if step != 2 or r == 0 else 2 for r in RANKS]
        wanted = np.mean([data(r, rows[r], 2, seed=step).sum(0) for r in RANKS], axis=0)
        near(run(tf.constant(data(ME, rows[ME], 2, seed=step), tf.float32))[0], wanted)


def check_several_tapes_in_one_function():
    ours, theirs = variables(), variables()

    @tf.function
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


def check_jacobians_are_this_ranks():
    part = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        target = part * part * float(ME + 1)
    found = hvd.DistributedGradientTape(tape).jacobian(target, part)
    near(found, np.diag([2.0, 4.0]) * (ME + 1))


TABLE = tf.Variable(tf.ones([6, 2]))


def embedding_gradient(rows, **options):
    """The gradient of the table whose `rows` are looked up, each weighted by its place + 1."""
    table = TABLE
    with tf.GradientTape() as tape:
        found = tf.nn.embedding_lookup(table, tf.constant(rows, tf.int64))
        target = tf.reduce_sum(found * tf.reshape(tf.range(1.0, len(rows) + 1), [-1, 1]))
    return hvd.DistributedGradientTape(tape, **options).gradient(target, table)


def embedding_rows(rank):
    return [rank % 6, 2, (rank + 3) % 6, 2][: 4 - rank % 2]


def check_embeddings():
    wanted = np.zeros((6, 2))
    for r in RANKS:
        for place, row in enumerate(embedding_rows(r)):
            wanted[row] += place + 1
    for options, factor in (
        ({}, 1 / SIZE),
        ({"op": hvd.Sum}, 1),
        ({"gradient_predivide_factor": 2.0}, 1 / SIZE),
    ):
        for run in eagerly_and_as_function(lambda o=options: embedding_gradient(embedding_rows(ME), **o)):
            found = run()
            assert isinstance(found, tf.IndexedSlices), found
            near(tf.convert_to_tensor(found), wanted * factor)
    for options in ({}, {"groups": 1}, {"compression": hvd.Compression.none}):
        for run in eagerly_and_as_function(
            lambda o=options: embedding_gradient(embedding_rows(ME), sparse_as_dense=True, **o)
        ):
            found = run()
            assert isinstance(found, tf.Tensor)
            near(found, wanted / SIZE)
    if SIZE > 1:
        raises(
            NotImplementedError,
            "sparse_as_dense",
            lambda: embedding_gradient(embedding_rows(ME), op=hvd.Adasum),
        )


def check_process_sets():
    with mock.patch.dict(os.environ, {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}):
        hvd.shutdown()
        hvd.init(process_sets="dynamic")
    try:
        members = list(RANKS)[:2]
        some, alone = (hvd.add_process_set(m) for m in (members, [SIZE - 1])) if SIZE > 2 else (None, None)
        if SIZE <= 2:
            return
        parts = variables()
        for options in ({}, {"groups": 2}):
            for run in eagerly_and_as_function(lambda o=options: gradients(parts, process_set=some, **o)):
                agree(run(), mean_slopes(members) if ME in members else slopes(ME))
            for run in eagerly_and_as_function(lambda o=options: gradients(parts, process_set=alone, **o)):
                agree(run(), slopes(ME))
        tape = tf.GradientTape()
        with tape:
            target = loss(parts)
        tape = hvd.DistributedGradientTape(tape, process_set=some)
        tape.register_local_source(parts)
        agree(
            tape.gradient(target, parts),
            [s / 2 for s in slopes(ME)] if ME in members else slopes(ME),
        )
    finally:
        hvd.shutdown()
        hvd.init()


def check_decided_at_run_time():
    parts = variables()
    with mock.patch.dict(os.environ, {"HOROVOD_ELASTIC": "1"}):
        for options in ({}, {"groups": 2}, {"compression": hvd.Compression.fp16}):
            for run in eagerly_and_as_function(lambda o=options: gradients(parts, **o)):
                for _ in range(2):
                    agree(run(), mean_slopes(), 2e-3 if "compression" in options else 1e-5)
        run = tf.function(lambda: embedding_gradient([ME, 1]))
        wanted = np.zeros((6, 2))
        for r in RANKS:
            wanted[r] += 1 / SIZE
            wanted[1] += 2 / SIZE
        near(tf.convert_to_tensor(run()), wanted)


def check_in_functions_compiled_by_xla():
    parts = variables()
    partly = [parts[0], None, parts[2], parts[3]]

    @tf.function(jit_compile=True)
    def run():
        with tf.GradientTape() as tape:
            target = loss(partly)
        some = hvd.DistributedGradientTape(tape).gradient(target, parts)
        assert some[1] is None
        return gradients(parts), gradients(parts, groups=2, op=hvd.Sum), [g for g in some if g is not None]

    for _ in range(3):
        means, sums, some = run()
        agree(means, mean_slopes())
        agree(sums, [SIZE * m for m in mean_slopes()])
        agree(some, [mean_slopes()[i] for i in (0, 2, 3)])


def check_embeddings_in_functions_compiled_by_xla():
    wanted = np.zeros((6, 2))
    for r in RANKS:
        for place, row in enumerate(embedding_rows(r)):
            wanted[row] += place + 1
    run = tf.function(lambda: tf.convert_to_tensor(embedding_gradient(embedding_rows(ME))), jit_compile=True)
    near(run(), wanted / SIZE)
