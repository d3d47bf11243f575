"""Checks of DistributedOptimizer around optimizers of tf.compat.v1, run on every rank by rank_main.py.

What the ranks train together is compared with what one process trains on all of their data.
"""

import warnings

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd
from tf_support import ME, RANKS, SIZE, adasum, data, near, raises, same_everywhere, v1

STEPS = 4
SHAPES = {"weight": (3, 2), "bias": (2,)}

KINDS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
    "adam": lambda: v1.train.AdamOptimizer(0.01),
    "rmsprop": lambda: v1.train.RMSPropOptimizer(0.01, momentum=0.5, centered=True),
    "adadelta": lambda: v1.train.AdadeltaOptimizer(1.0),
    "ftrl": lambda: v1.train.FtrlOptimizer(0.1),
    "proximal": lambda: v1.train.ProximalGradientDescentOptimizer(0.1),
}


def make_variables(resource=True):
    return [
        v1.get_variable(name, initializer=tf.constant(data(50, *shape), tf.float32), use_resource=resource)
        for name, shape in SHAPES.items()
    ]


def loss_of(weight, bias, inputs):
    return tf.reduce_mean(tf.square(tf.tanh(tf.matmul(inputs, weight)) + bias - 1.0))


def batch(step, rank, rows=4):
    return data(rank, rows, 3, seed=step)


def train(optimizer_of, feeds, steps=STEPS, resource=True, loss=loss_of, global_step=False, prepare=None):
    """The variables after so many steps in a session, each with the batch that `feeds` gives for it."""
    with tf.Graph().as_default():
        if prepare is not None:
            prepare()
        variables = make_variables(resource)
        inputs = v1.placeholder(tf.float32, [None, 3])
        counter = v1.train.get_or_create_global_step() if global_step else None
        optimizer = optimizer_of(variables)
        op = optimizer.minimize(loss(*variables, inputs), var_list=variables, global_step=counter)
        with v1.Session() as session:
            session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
            counts = []
            for step in range(steps):
                session.run(op, {inputs: feeds(step)})
                if global_step:
                    counts.append(session.run(counter))
            values = session.run(variables)
            return (values, counts) if global_step else values


def together(kind="momentum", feeds=lambda step: batch(step, ME), resource=True, loss=loss_of, **options):
    return train(
        lambda _: hvd.DistributedOptimizer(KINDS[kind](), **options), feeds, resource=resource, loss=loss
    )


def alone(kind="momentum", feeds=None, loss=loss_of, **options):
    return train(
        lambda _: KINDS[kind](),
        feeds or (lambda step: np.concatenate([batch(step, r) for r in RANKS])),
        loss=loss,
        **options,
    )


def agree(found, wanted, tolerance=1e-5):
    for f, w in zip(found, wanted, strict=True):
        near(f, w, tolerance)


def check_every_kind():
    for kind in KINDS:
        found = together(kind)
        agree(found, alone(kind), 1e-4)
        same_everywhere(found, f"kind.{kind}")


def check_variables_that_are_no_resources():
    agree(together("adam", resource=False), alone("adam"), 1e-4)
    same_everywhere(together("sgd", resource=False, op=hvd.Adasum), "reference.adasum")


def check_options():
    single = alone()
    for options, tolerance in (
        ({"gradient_predivide_factor": 4.0}, 1e-5),
        ({"compression": hvd.Compression.fp16}, 5e-3),
        ({"compression": hvd.Compression.bf16}, 5e-2),
        ({"groups": 1}, 1e-5),
        ({"groups": 5}, 1e-5),
        ({"groups": 2, "gradient_predivide_factor": 2.0}, 1e-5),
        ({"device_dense": "/cpu:0", "device_sparse": "/cpu:0", "use_locking": True}, 1e-5),
        ({"name": "Mine"}, 1e-5),
    ):
        agree(together(**options), single, tolerance)
    agree(together(op=hvd.Sum), alone(loss=lambda *a: SIZE * loss_of(*a)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        agree(together(num_groups=2), single)
    assert any(w.category is DeprecationWarning and "num_groups" in str(w.message) for w in caught)
    agree(
        train(
            lambda variables: hvd.DistributedOptimizer(KINDS["adam"](), groups=[variables[::-1]]),
            lambda step: batch(step, ME),
        ),
        alone("adam"),
        1e-4,
    )


def check_bad_options():
    sgd = KINDS["sgd"]()
    for text, options in (
        ("op != Average", {"op": hvd.Sum, "gradient_predivide_factor": 2.0}),
        ("must be > 0", {"backward_passes_per_step": 0}),
        ("average_aggregated_gradients", {"op": hvd.Adasum, "average_aggregated_gradients": True}),
        ("non-negative integer", {"groups": -1}),
        ("needs a graph", {"backward_passes_per_step": 2}),
        ("needs a graph", {"backward_passes_per_step": 2, "op": hvd.Adasum}),
    ):
        raises(ValueError, text, lambda o=options: hvd.DistributedOptimizer(sgd, **o))
    raises(ValueError, "legacy TensorFlow or Keras", lambda: hvd.DistributedOptimizer("sgd"))
    keras = tf.keras.optimizers.SGD()
    raises(ValueError, "Adasum", lambda: hvd.DistributedOptimizer(keras, op=hvd.Adasum))


def check_slots_and_names():
    with tf.Graph().as_default():
        variables = make_variables()
        inner = KINDS["adam"]()
        optimizer = hvd.DistributedOptimizer(inner)
        assert optimizer.get_name() == "DistributedAdamOptimizer"
        assert isinstance(optimizer, v1.train.Optimizer)
        optimizer.minimize(loss_of(*variables, tf.ones([1, 3])))
        assert optimizer.get_slot_names() == inner.get_slot_names() == ["m", "v"]
        assert optimizer.get_slot(variables[0], "m") is inner.get_slot(variables[0], "m")
        assert len(optimizer.variables()) == 6
        assert "horovod" in str(type(optimizer))


def check_backward_passes_per_step():
    for passes in (2, 3):
        steps = 2 * passes

        def all_of(step, passes=passes):
            turn = step * passes
            return np.concatenate([batch(turn + k, r) for k in range(passes) for r in RANKS])

        def scaled(*a, passes=passes):
            return passes * loss_of(*a)

        for average in (False, True):
            found, counts = train(
                lambda _, p=passes, a=average: hvd.DistributedOptimizer(
                    KINDS["momentum"](), backward_passes_per_step=p, average_aggregated_gradients=a
                ),
                lambda step: batch(step, ME),
                steps=steps,
                global_step=True,
            )
            agree(found, alone(feeds=all_of, steps=2, loss=loss_of if average else scaled), 1e-4)
            assert counts == list(range(1, steps + 1)), counts
            same_everywhere(found, f"passes.{passes}.{average}")


def check_passes_with_control_flow_of_tensorflow_1():
    def old():
        v1.disable_control_flow_v2()

    try:
        found = train(
            lambda _: hvd.DistributedOptimizer(KINDS["adam"](), backward_passes_per_step=2),
            lambda step: batch(step // 2, ME),
            resource=False,
            prepare=old,
        )
        agree(found, alone("adam", steps=2, loss=lambda *a: 2 * loss_of(*a)), 1e-4)
    finally:
        v1.enable_control_flow_v2()


def check_passes_are_kept_in_local_variables():
    with tf.Graph().as_default():
        variables = make_variables()
        optimizer = hvd.DistributedOptimizer(KINDS["sgd"](), backward_passes_per_step=2)
        optimizer.minimize(loss_of(*variables, tf.ones([1, 3])))
        helper = optimizer._agg_helper
        assert isinstance(helper, hvd.LocalGradientAggregationHelper)
        kept = [helper.counter, *helper.locally_aggregated_grads]
        assert len(kept) == 3 and all(v in v1.local_variables() for v in kept)
        assert not any(v is k for v in v1.global_variables() for k in kept)


def embedded(table, bias, inputs):
    """A loss that looks up rows of the table, as tf.IndexedSlices in the gradient."""
    rows = tf.cast(tf.round(tf.abs(inputs[:, 0]) * 2), tf.int64)
    return tf.reduce_mean(tf.square(tf.nn.embedding_lookup(table, rows) - bias) * inputs[:, :2])


def check_embeddings():
    for kind in ("sgd", "adagrad"):
        agree(together(kind, loss=embedded), alone(kind, loss=embedded), 1e-4)
        agree(together(kind, loss=embedded, sparse_as_dense=True), alone(kind, loss=embedded), 1e-4)
        agree(together(kind, loss=embedded, groups=1), alone(kind, loss=embedded), 1e-4)
    raises(
        ValueError,
        "sparse_as_dense",
        lambda: together("sgd", loss=embedded, backward_passes_per_step=2),
    )
    found = train(
        lambda _: hvd.DistributedOptimizer(KINDS["sgd"](), backward_passes_per_step=2, sparse_as_dense=True),
        lambda step: batch(step // 2, ME),
        loss=embedded,
    )
    agree(found, alone("sgd", steps=2, loss=lambda *a: 2 * embedded(*a)), 1e-4)


def check_local_variables():
    for passes in (1, 2):
        for scaled in (True, False):

            def optimizer_of(variables, passes=passes, scaled=scaled):
                optimizer = hvd.DistributedOptimizer(
                    KINDS["sgd"](), backward_passes_per_step=passes, scale_local_gradients=scaled
                )
                optimizer.register_local_var(variables[1])
                return optimizer

            found = train(optimizer_of, lambda step: batch(0, ME), steps=passes)
            factor = passes / (SIZE if scaled else 1)
            mine = train(
                lambda _: KINDS["sgd"](),
                lambda step: batch(0, ME),
                steps=1,
                loss=lambda *a, factor=factor: factor * loss_of(*a),
            )
            shared = train(
                lambda _: KINDS["sgd"](),
                lambda step: np.concatenate([batch(0, r) for r in RANKS]),
                steps=1,
                loss=lambda *a, passes=passes: passes * loss_of(*a),
            )
            agree(found, [shared[0], mine[1]])


def check_unconnected_gradients():
    def partly(weight, bias, inputs):
        return tf.reduce_mean(tf.square(tf.matmul(inputs, weight)))

    agree(together("adam", loss=partly), alone("adam", loss=partly), 1e-4)
    agree(together("adam", loss=partly, groups=1), alone("adam", loss=partly), 1e-4)
    found = train(
        lambda _: hvd.DistributedOptimizer(KINDS["sgd"](), backward_passes_per_step=2),
        lambda step: batch(step // 2, ME),
        loss=partly,
    )
    agree(found, alone("sgd", steps=2, loss=lambda *a: 2 * partly(*a)), 1e-4)
    if SIZE > 1:
        uneven = partly if ME else loss_of
        raises(tf.errors.FailedPreconditionError, r"shape \[0\]", lambda: together(loss=uneven))


def check_ranks_whose_graphs_differ():
    def prepare():
        if ME == 0:
            for i in range(5):
                tf.reduce_sum(tf.constant(float(i)) * 2.0, name="gradients/Sum")

    found = train(
        lambda _: hvd.DistributedOptimizer(KINDS["adam"]()), lambda step: batch(step, ME), prepare=prepare
    )
    agree(found, alone("adam"), 1e-4)


def check_two_optimizers_in_one_graph():
    with tf.Graph().as_default():
        ours = make_variables()
        with v1.variable_scope("theirs"):
            theirs = make_variables()
        inputs = v1.placeholder(tf.float32, [None, 3])
        ops = [
            hvd.DistributedOptimizer(KINDS["sgd"]()).minimize(k * loss_of(*some, inputs), var_list=some)
            for k, some in ((1.0, ours), (3.0, theirs))
        ]
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for step in range(STEPS):
                session.run(ops, {inputs: batch(step, ME)})
            found = session.run([ours, theirs])
    agree(found[0], alone("sgd"))
    agree(found[1], alone("sgd", loss=lambda *a: 3.0 * loss_of(*a)))


def adasum_by_hand(kind, passes):
    """Weights after STEPS steps of which each `passes`-th combines the changes, from sessions of one process."""
    values = None
    for turn in range(0, STEPS, passes):
        after = []
        for r in RANKS:
            batches = [batch(turn + k, r) for k in range(passes)]
            after.append(_run_from(values, KINDS[kind], batches))
        before = values if values is not None else _run_from(None, None, [])
        changes = [[a - b for a, b in zip(each, before)] for each in after]
        values = [b + adasum([c[i] for c in changes]) for i, b in enumerate(before)]
    return values


def _run_from(values, make, batches):
    with tf.Graph().as_default():
        variables = make_variables()
        inputs = v1.placeholder(tf.float32, [None, 3])
        op = make().minimize(loss_of(*variables, inputs)) if make else None
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for v, value in zip(variables, values or []):
                v.load(np.asarray(value, np.float32), session)
            for each in batches:
                session.run(op, {inputs: each})
            return [np.asarray(v, np.float64) for v in session.run(variables)]


def check_adasum():
    # Of an optimizer without state, so that each turn can be computed by itself.
    for passes in (1, 2):
        found = together("sgd", op=hvd.Adasum, backward_passes_per_step=passes)
        if SIZE > 1:
            agree(found, adasum_by_hand("sgd", passes), 1e-4)
        same_everywhere(found, f"adasum.{passes}")
    if SIZE == 1:
        agree(together("momentum", op=hvd.Adasum), alone("momentum"))
    same_everywhere(together("adam", op=hvd.Adasum, compression=hvd.Compression.fp16), "adasum.adam")


def check_adasum_keeps_the_optimizers_slots():
    with tf.Graph().as_default():
        variables = make_variables()
        optimizer = hvd.DistributedOptimizer(KINDS["momentum"](), op=hvd.Adasum)
        assert optimizer.get_name() == "DistributedDeltaMomentumOptimizer"
        counter = v1.train.get_or_create_global_step()
        op = optimizer.minimize(loss_of(*variables, tf.ones([2, 3])), global_step=counter)
        assert optimizer.get_slot_names() == ["momentum"]
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run([op, op])
            assert session.run(counter) == 1


def check_eager_mode():
    variables = [tf.Variable(data(50, *shape), dtype=tf.float32) for shape in SHAPES.values()]
    for options in ({}, {"op": hvd.Adasum}):
        start = [v.numpy() for v in variables]
        optimizer = hvd.DistributedOptimizer(KINDS["sgd"](), **options)
        inputs = tf.constant(batch(0, ME), tf.float32)
        for _ in range(2):
            optimizer.minimize(lambda i=inputs: loss_of(*variables, i), var_list=variables)
        same_everywhere(variables, f"eager.{options}")
        assert any(np.abs(v.numpy() - s).max() > 1e-4 for v, s in zip(variables, start))


def check_in_a_function():
    variables = [tf.Variable(data(50, *shape), dtype=tf.float32) for shape in SHAPES.values()]
    optimizer = hvd.DistributedOptimizer(KINDS["momentum"]())

    @tf.function
    def step(inputs):
        optimizer.minimize(lambda: loss_of(*variables, inputs), var_list=variables)

    for number in range(STEPS):
        step(tf.constant(batch(number, ME), tf.float32))
    agree(variables, alone())


def check_gradients_clipped_after_the_reduction():
    def clipped(optimizer):
        with tf.Graph().as_default():
            variables = make_variables()
            inputs = v1.placeholder(tf.float32, [None, 3])
            grads, found = zip(*optimizer.compute_gradients(loss_of(*variables, inputs)))
            grads, _ = tf.clip_by_global_norm(grads, 0.1)
            op = optimizer.apply_gradients(zip(grads, found))
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                rows = (
                    np.concatenate([batch(0, r) for r in RANKS]) if not _is_ours(optimizer) else batch(0, ME)
                )
                session.run(op, {inputs: rows})
                return session.run(variables)

    agree(clipped(hvd.DistributedOptimizer(KINDS["sgd"]())), clipped(KINDS["sgd"]()))


def _is_ours(optimizer):
    return type(optimizer).__module__.startswith("horovod")


def check_process_sets():
    if SIZE < 3:
        return
    hvd.shutdown()
    some = hvd.ProcessSet([0, 1])
    hvd.init(process_sets=[some])
    try:
        for kind in ("sgd", "adam"):
            found = together(kind, process_set=some)
            if ME < 2:
                both = alone(kind, lambda step: np.concatenate([batch(step, r) for r in (0, 1)]))
                agree(found, both, 1e-4)
            else:
                agree(found, alone(kind, lambda step: batch(step, ME)), 1e-4)
        found = together("sgd", op=hvd.Adasum, process_set=some)
        if ME == 2:
            agree(found, alone("sgd", lambda step: batch(step, ME)))
    finally:
        hvd.shutdown()
        hvd.init()
