"""DistributedOptimizer around optimizers of tf.compat.v1: Adasum, process sets, local variables, old graphs."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from tf_support import adasum, job_with, raises, same_everywhere, v1
from tf_training import (
    KINDS,
    STEPS,
    agree,
    alone,
    batch,
    loss_of,
    make_variables,
    reference,
    reference_of,
    together,
    train,
)

pytestmark = pytest.mark.ranks(2, framework="tensorflow")


def test_variables_that_are_no_resources():
    agree(together("adam", resource=False), reference_of("adam"), 1e-4)
    same_everywhere(together("sgd", resource=False, op=hvd.Adasum), "reference.adasum")


def test_passes_with_variables_that_are_no_resources():
    assert v1.control_flow_v2_enabled()
    raises(
        ValueError,
        "use_resource=True",
        lambda: train(
            lambda _: hvd.DistributedOptimizer(KINDS["sgd"](), backward_passes_per_step=2),
            lambda step: batch(step, hvd.rank()),
            resource=False,
        ),
    )


def test_passes_with_control_flow_of_tensorflow_1():
    def old():
        v1.disable_control_flow_v2()

    try:
        found = train(
            lambda _: hvd.DistributedOptimizer(KINDS["adam"](), backward_passes_per_step=2),
            lambda step: batch(step // 2, hvd.rank()),
            resource=False,
            prepare=old,
        )
        agree(found, reference("adam", steps=2, loss=lambda *a: 2 * loss_of(*a)), 1e-4)
    finally:
        v1.enable_control_flow_v2()


def test_local_variables():
    # One step of SGD is linear in the loss: with a factor in front of it, the changes are multiplied by the factor.
    with one_process("sgd") as variables_after:
        start, mine = variables_after([]), variables_after([batch(0, hvd.rank())])
        shared = variables_after([np.concatenate([batch(0, r) for r in range(hvd.size())])])
    for passes in (1, 2):
        for scaled in (True, False):

            def optimizer_of(variables, passes=passes, scaled=scaled):
                optimizer = hvd.DistributedOptimizer(
                    KINDS["sgd"](), backward_passes_per_step=passes, scale_local_gradients=scaled
                )
                optimizer.register_local_var(variables[1])
                return optimizer

            found = train(optimizer_of, lambda step: batch(0, hvd.rank()), steps=passes)
            factor = passes / (hvd.size() if scaled else 1)
            wanted = start[0] + passes * (shared[0] - start[0]), start[1] + factor * (mine[1] - start[1])
            agree(found, wanted)


def test_unconnected_gradients():
    def partly(weight, bias, inputs):
        return tf.reduce_mean(tf.square(tf.matmul(inputs, weight)))

    single = reference("adam", loss=partly)
    agree(together("adam", loss=partly), single, 1e-4)
    agree(together("adam", loss=partly, groups=1), single, 1e-4)
    found = train(
        lambda _: hvd.DistributedOptimizer(KINDS["sgd"](), backward_passes_per_step=2),
        lambda step: batch(step // 2, hvd.rank()),
        loss=partly,
    )
    agree(found, reference("sgd", steps=2, loss=lambda *a: 2 * partly(*a)), 1e-4)
    uneven = partly if hvd.rank() else loss_of
    raises(tf.errors.FailedPreconditionError, r"shape \[0\]", lambda: together(loss=uneven))


@contextlib.contextmanager
def one_process(kind):
    """A function that trains in one process: ``variables_after(batches)`` or, beginning with given values,
    ``variables_after(batches, values)``."""
    with tf.Graph().as_default():
        variables = make_variables()
        inputs = v1.placeholder(tf.float32, [None, 3])
        op = KINDS[kind]().minimize(loss_of(*variables, inputs))
        with v1.Session() as session:

            def variables_after(batches, values=()):
                session.run(v1.global_variables_initializer())
                for v, value in zip(variables, values):
                    v.load(np.asarray(value, np.float32), session)
                for each in batches:
                    session.run(op, {inputs: each})
                return [np.asarray(v, np.float64) for v in session.run(variables)]

            yield variables_after


def adasum_by_hand(variables_after, passes):
    """The weights after two steps of Adasum, each of `passes` passes, computed by one_process()."""
    values = variables_after([])
    for turn in range(0, 2, passes):
        after = [
            variables_after([batch(turn + k, r) for k in range(passes)], values) for r in range(hvd.size())
        ]
        changes = [[a - b for a, b in zip(each, values)] for each in after]
        values = [b + adasum([c[i] for c in changes]) for i, b in enumerate(values)]
    return values


def test_adasum():
    # An optimizer without state, so that each step can be computed by itself.
    for passes in (1, 2):
        found = train(
            lambda _, p=passes: hvd.DistributedOptimizer(
                KINDS["sgd"](), op=hvd.Adasum, backward_passes_per_step=p
            ),
            lambda step: batch(step, hvd.rank()),
            steps=2,
        )
        with one_process("sgd") as variables_after:
            agree(found, adasum_by_hand(variables_after, passes), 1e-4)
        same_everywhere(found, f"adasum.{passes}")
    same_everywhere(together("adam", op=hvd.Adasum, compression=hvd.Compression.fp16), "adasum.adam")


def test_adasum_keeps_the_optimizers_slots():
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


@pytest.mark.ranks(3, framework="tensorflow")
def test_process_sets():
    some = hvd.ProcessSet([0, 1])
    with job_with(some):
        found = together("adam", process_set=some)
        if hvd.rank() < 2:
            both = alone("adam", lambda step: np.concatenate([batch(step, r) for r in (0, 1)]))
            agree(found, both, 1e-4)
        else:
            agree(found, alone("adam", lambda step: batch(step, hvd.rank())), 1e-4)
        found = together("sgd", op=hvd.Adasum, process_set=some)
        if hvd.rank() == 2:
            agree(found, alone("sgd", lambda step: batch(step, hvd.rank())))


def test_two_optimizers_in_one_graph():
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
                session.run(ops, {inputs: batch(step, hvd.rank())})
            found = session.run([ours, theirs])
    agree(found[0], reference_of("sgd"))
    agree(found[1], reference("sgd", loss=lambda *a: 3.0 * loss_of(*a)))
