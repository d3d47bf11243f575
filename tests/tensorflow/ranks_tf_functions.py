"""Checks of broadcasts of variables and objects, and of hooks in sessions; run on every rank by tests/harness."""

import os
import tempfile

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from harness.rank import needs
from tf_support import (
    ME,
    RANKS,
    SIZE,
    data,
    eagerly_and_as_function,
    near,
    raises,
    same_everywhere,
    v1,
)

ROOT = SIZE - 1
DTYPES = [tf.float32, tf.float16, tf.bfloat16, tf.float64, tf.int32, tf.int64, tf.uint8, tf.bool]


def values(rank, dtype):
    return tf.cast(tf.constant(data(rank, 3, 2) * 4), dtype)


def arrays(rank):
    return [values(rank, dtype).numpy() for dtype in DTYPES]


def check_broadcast_variables_of_every_dtype():
    for inplace in (False, True):
        made = [tf.Variable(values(ME, dtype)) for dtype in DTYPES]
        assert hvd.broadcast_variables(made, root_rank=ROOT, inplace=inplace) is None
        for variable, wanted in zip(made, arrays(ROOT)):
            assert np.array_equal(variable.numpy(), wanted), variable.dtype


def check_broadcast_variables_in_a_function():
    made = [tf.Variable(values(ME, dtype)) for dtype in DTYPES]

    def run():
        hvd.broadcast_variables(made, root_rank=0)
        return [tf.identity(v) for v in made]

    for one in eagerly_and_as_function(run):
        for variable, dtype in zip(made, DTYPES):
            variable.assign(values(ME + 10, dtype))
        for value, wanted in zip(one(), arrays(10)):
            assert np.array_equal(value.numpy(), wanted), value.dtype


def check_broadcast_variables_of_keras():
    tf.keras.utils.set_random_seed(ME)
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(4), tf.keras.layers.BatchNormalization(), tf.keras.layers.Dropout(0.5)]
    )
    model.build((None, 3))
    optimizer = tf.keras.optimizers.Adam(0.1 * (ME + 1))
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables(model.variables, root_rank=0)
    same_everywhere([np.array(v) for v in model.variables], "keras.model")
    # In Keras 3 a property that is a list, in some versions of Keras 2 a method.
    hvd.broadcast_variables(optimizer.variables, root_rank=0)
    found = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    same_everywhere([np.array(v) for v in found], "keras.optimizer")


def check_what_broadcast_variables_refuses():
    hvd.broadcast_variables([], root_rank=0)
    raises(ValueError, "takes variables", lambda: hvd.broadcast_variables([tf.constant(1.0)], root_rank=0))
    raises(RuntimeError, "does not support eager execution", lambda: hvd.broadcast_global_variables(0))


@needs(ranks=2)
def check_broadcast_variables_of_ranks_that_differ():
    made = [tf.Variable(tf.zeros([2 + (ME == 0)])), tf.Variable(1.0)]
    raises(
        tf.errors.FailedPreconditionError,
        "'variable 0' is",
        lambda: hvd.broadcast_variables(made, root_rank=0),
    )
    more = [tf.Variable(float(i)) for i in range(2 + (ME == 0))]
    raises(
        tf.errors.FailedPreconditionError, "but not on", lambda: hvd.broadcast_variables(more, root_rank=0)
    )


@needs(ranks=2)
def check_lists_of_variables_that_differ_in_graphs():
    """Runs of one kind are sent together, so the longer list has one group more. All ranks fail, and none waits."""

    def variables(kinds):
        return [
            v1.get_variable(f"v{i}", initializer=tf.constant(float(ME)), use_resource=kind)
            for i, kind in enumerate(kinds)
        ]

    for longer in (0, 1):
        with tf.Graph().as_default(), v1.Session() as session:
            made = variables([True, False, True] if longer == ME else [True, False])
            session.run(v1.global_variables_initializer())
            for op in (hvd.broadcast_variables(made, root_rank=0), hvd.broadcast_global_variables(0)):
                raises(tf.errors.FailedPreconditionError, r"shape \[0, 2, 2\]", lambda op=op: session.run(op))
            assert session.run(made) == [float(ME)] * len(made)
            same = hvd.broadcast_variables(made[:2], root_rank=0, name="same")
            session.run(same)
            assert session.run(made[:2]) == [0.0, 0.0]


def check_broadcast_variables_in_graphs():
    of_root, of_zero = arrays(ROOT), arrays(0)
    for resource in (True, False):
        with tf.Graph().as_default():
            made = [
                v1.get_variable(f"v{i}", initializer=values(ME, dtype), use_resource=resource)
                for i, dtype in enumerate(DTYPES)
            ]
            op = hvd.broadcast_variables(made, root_rank=ROOT)
            everything = hvd.broadcast_global_variables(0)
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                session.run(op)
                for value, wanted in zip(session.run(made), of_root):
                    assert np.array_equal(value, wanted), (value.dtype, resource)
                session.run(v1.global_variables_initializer())
                session.run(everything)
                for value, wanted in zip(session.run(made), of_zero):
                    assert np.array_equal(value, wanted), (value.dtype, resource)


def check_objects():
    for root in RANKS:
        thing = {"rank": ME, "rows": np.arange(5) * ME, "text": "ß" * ME, "function": lambda x: x + 1}
        found = hvd.broadcast_object(thing, root)
        assert found["rank"] == root and found["rows"].tolist() == (np.arange(5) * root).tolist()
        assert (found is thing) == (root == ME) and found["function"](1) == 2
    found = hvd.broadcast_object(list(range(100000)) if ME == 0 else None)
    assert found == list(range(100000))
    assert hvd.allgather_object({"me": ME, "pad": [0] * ME}) == [{"me": r, "pad": [0] * r} for r in RANKS]
    assert hvd.allgather_object(None, name="nothing") == [None] * SIZE
    with tf.Graph().as_default(), v1.Session() as session:
        assert hvd.broadcast_object(ME, ROOT, session=session) == ROOT
        send = hvd.broadcast_object_fn(ROOT, session=session, name="sender")
        assert send(ME + 1) == ROOT + 1 and send("x" * ME) == "x" * ROOT
        assert hvd.allgather_object(ME, session=session) == list(RANKS)


def train_monitored(folder, steps, learning_rate=0.1, hooks=()):
    """As a script for Horovod 0.x: only rank 0 has checkpoints, and the other ranks get its values."""
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        weight = v1.get_variable("weight", initializer=tf.constant(data(ME, 3, 1), tf.float32))
        inputs = tf.constant(data(100 + ME, 4, 3), tf.float32)
        loss = tf.reduce_mean(tf.square(tf.matmul(inputs, weight) - 1.0))
        optimizer = hvd.DistributedOptimizer(v1.train.AdagradOptimizer(learning_rate * SIZE))
        op = optimizer.minimize(loss, global_step=step)
        seen = []
        with v1.train.MonitoredTrainingSession(
            checkpoint_dir=folder if ME == 0 else None,
            config=v1.ConfigProto(allow_soft_placement=True, inter_op_parallelism_threads=1),
            hooks=[
                hvd.BroadcastGlobalVariablesHook(0),
                v1.train.StopAtStepHook(last_step=steps),
                v1.train.NanTensorHook(loss),
                *hooks,
            ],
        ) as session:
            first = session.run_step_fn(lambda step_context: step_context.session.run([weight, step]))
            while not session.should_stop():
                session.run(op)
                if not session.should_stop():
                    seen.append(session.run_step_fn(lambda step_context: step_context.session.run(weight)))
        return first, seen


def check_monitored_training_session():
    with tempfile.TemporaryDirectory() as folder:
        (weight, step), seen = train_monitored(folder, steps=3)
        near(weight, data(0, 3, 1))
        assert step == 0 and len(seen) == 2
        same_everywhere(seen, "monitored")
        assert bool(tf.train.latest_checkpoint(folder)) == (ME == 0)
        assert os.listdir(folder) == [] or ME == 0
        # Rank 0 reads its checkpoint, and the other ranks continue with its values.
        (weight, step), more = train_monitored(folder, steps=6)
        assert step == 3
        same_everywhere([weight, *more], "monitored.again")
        assert np.abs(weight - seen[-1]).max() > 0


def check_the_hook_is_made_anew_for_each_graph():
    hook = hvd.BroadcastGlobalVariablesHook(0, device="/cpu:0")
    for turn in range(2):
        with tf.Graph().as_default():
            variable = v1.get_variable("v", initializer=tf.constant(float(ME + 10 * turn + 1)))
            with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
                assert session.run(variable) == 10 * turn + 1


def check_graphs_that_differ_are_refused_everywhere():
    if SIZE == 1:
        pytest.skip("one rank has no other to differ from")
    with tf.Graph().as_default():
        for i in range(2 + (ME == 0)):
            v1.get_variable(f"v{i}", initializer=tf.constant(float(ME)))
        hook = hvd.BroadcastGlobalVariablesHook(0)
        raises(
            tf.errors.FailedPreconditionError,
            "'variable 2' is on rank 0, but not on",
            lambda: v1.train.MonitoredTrainingSession(hooks=[hook]),
        )


def check_values_of_a_state_that_refer_to_variables():
    class Reader:
        def __init__(self, variable):
            self.variable, self.seen = variable, []

    variable = tf.Variable(1.0)
    state = hvd.elastic.TensorFlowState([variable], reader=Reader(variable))
    state.reader.seen.append(1)
    state.restore()
    assert state.reader.variable is variable and state.reader.seen == []
    state.sync()
    assert state.reader.variable is variable
