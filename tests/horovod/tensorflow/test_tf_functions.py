"""Broadcasts of variables and objects, hooks in sessions, and a state with objects that refer to variables."""

import os
import tempfile

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from tf_support import data, eagerly_and_as_function, last_rank, near, raises, same_everywhere, v1

pytestmark = pytest.mark.ranks(1, 2, framework="tensorflow")
of_ranks_that_differ = pytest.mark.ranks(2, framework="tensorflow")

DTYPES = [tf.float32, tf.float16, tf.bfloat16, tf.float64, tf.int32, tf.int64, tf.uint8, tf.bool]


def values(rank, dtype):
    return tf.cast(tf.constant(data(rank, 3, 2) * 4), dtype)


def arrays(rank):
    return [values(rank, dtype).numpy() for dtype in DTYPES]


def test_broadcast_variables_of_every_dtype():
    for inplace in (False, True):
        made = [tf.Variable(values(hvd.rank(), dtype)) for dtype in DTYPES]
        assert hvd.broadcast_variables(made, root_rank=last_rank(), inplace=inplace) is None
        for variable, wanted in zip(made, arrays(last_rank())):
            assert np.array_equal(variable.numpy(), wanted), variable.dtype


def test_broadcast_variables_in_a_function():
    made = [tf.Variable(values(hvd.rank(), dtype)) for dtype in DTYPES]

    def run():
        hvd.broadcast_variables(made, root_rank=0)
        return [tf.identity(v) for v in made]

    for one in eagerly_and_as_function(run):
        for variable, dtype in zip(made, DTYPES):
            variable.assign(values(hvd.rank() + 10, dtype))
        for value, wanted in zip(one(), arrays(10)):
            assert np.array_equal(value.numpy(), wanted), value.dtype


def test_broadcast_variables_of_keras():
    tf.keras.utils.set_random_seed(hvd.rank())
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(4), tf.keras.layers.BatchNormalization(), tf.keras.layers.Dropout(0.5)]
    )
    model.build((None, 3))
    optimizer = tf.keras.optimizers.Adam(0.1 * (hvd.rank() + 1))
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables(model.variables, root_rank=0)
    same_everywhere([np.array(v) for v in model.variables], "keras.model")
    # In Keras 3 a property that is a list, in some versions of Keras 2 a method.
    hvd.broadcast_variables(optimizer.variables, root_rank=0)
    found = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    same_everywhere([np.array(v) for v in found], "keras.optimizer")


def test_what_broadcast_variables_refuses():
    hvd.broadcast_variables([], root_rank=0)
    raises(ValueError, "takes variables", lambda: hvd.broadcast_variables([tf.constant(1.0)], root_rank=0))
    raises(RuntimeError, "does not support eager execution", lambda: hvd.broadcast_global_variables(0))


@of_ranks_that_differ
def test_broadcast_variables_of_ranks_that_differ():
    made = [tf.Variable(tf.zeros([2 + (hvd.rank() == 0)])), tf.Variable(1.0)]
    raises(
        tf.errors.FailedPreconditionError,
        "'variable 0' is",
        lambda: hvd.broadcast_variables(made, root_rank=0),
    )
    more = [tf.Variable(float(i)) for i in range(2 + (hvd.rank() == 0))]
    raises(
        tf.errors.FailedPreconditionError, "but not on", lambda: hvd.broadcast_variables(more, root_rank=0)
    )


@of_ranks_that_differ
def test_lists_of_variables_that_differ_in_graphs():
    """Runs of one kind are sent together, so the longer list has one group more. All ranks fail, and none waits."""

    def variables(kinds):
        return [
            v1.get_variable(f"v{i}", initializer=tf.constant(float(hvd.rank())), use_resource=kind)
            for i, kind in enumerate(kinds)
        ]

    for longer in (0, 1):
        with tf.Graph().as_default(), v1.Session() as session:
            made = variables([True, False, True] if longer == hvd.rank() else [True, False])
            session.run(v1.global_variables_initializer())
            for op in (hvd.broadcast_variables(made, root_rank=0), hvd.broadcast_global_variables(0)):
                raises(tf.errors.FailedPreconditionError, r"shape \[0, 2, 2\]", lambda op=op: session.run(op))
            assert session.run(made) == [float(hvd.rank())] * len(made)
            same = hvd.broadcast_variables(made[:2], root_rank=0, name="same")
            session.run(same)
            assert session.run(made[:2]) == [0.0, 0.0]


def test_broadcast_variables_in_graphs():
    of_root, of_zero = arrays(last_rank()), arrays(0)
    for resource in (True, False):
        with tf.Graph().as_default():
            made = [
                v1.get_variable(f"v{i}", initializer=values(hvd.rank(), dtype), use_resource=resource)
                for i, dtype in enumerate(DTYPES)
            ]
            op = hvd.broadcast_variables(made, root_rank=last_rank())
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


def test_objects():
    for root in range(hvd.size()):
        thing = {
            "rank": hvd.rank(),
            "rows": np.arange(5) * hvd.rank(),
            "text": "ß" * hvd.rank(),
            "function": lambda x: x + 1,
        }
        found = hvd.broadcast_object(thing, root)
        assert found["rank"] == root and found["rows"].tolist() == (np.arange(5) * root).tolist()
        assert (found is thing) == (root == hvd.rank()) and found["function"](1) == 2
    found = hvd.broadcast_object(list(range(100000)) if hvd.rank() == 0 else None)
    assert found == list(range(100000))
    assert hvd.allgather_object({"me": hvd.rank(), "pad": [0] * hvd.rank()}) == [
        {"me": r, "pad": [0] * r} for r in range(hvd.size())
    ]
    assert hvd.allgather_object(None, name="nothing") == [None] * hvd.size()
    with tf.Graph().as_default(), v1.Session() as session:
        assert hvd.broadcast_object(hvd.rank(), last_rank(), session=session) == last_rank()
        send = hvd.broadcast_object_fn(last_rank(), session=session, name="sender")
        assert send(hvd.rank() + 1) == last_rank() + 1 and send("x" * hvd.rank()) == "x" * last_rank()
        assert hvd.allgather_object(hvd.rank(), session=session) == list(range(hvd.size()))


def train_monitored(folder, steps, learning_rate=0.1, hooks=()):
    """As a script for Horovod 0.x: only rank 0 has checkpoints, and the other ranks get its values."""
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        weight = v1.get_variable("weight", initializer=tf.constant(data(hvd.rank(), 3, 1), tf.float32))
        inputs = tf.constant(data(100 + hvd.rank(), 4, 3), tf.float32)
        loss = tf.reduce_mean(tf.square(tf.matmul(inputs, weight) - 1.0))
        optimizer = hvd.DistributedOptimizer(v1.train.AdagradOptimizer(learning_rate * hvd.size()))
        op = optimizer.minimize(loss, global_step=step)
        seen = []
        with v1.train.MonitoredTrainingSession(
            checkpoint_dir=folder if hvd.rank() == 0 else None,
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


def test_monitored_training_session():
    with tempfile.TemporaryDirectory() as folder:
        (weight, step), seen = train_monitored(folder, steps=3)
        near(weight, data(0, 3, 1))
        assert step == 0 and len(seen) == 2
        same_everywhere(seen, "monitored")
        assert bool(tf.train.latest_checkpoint(folder)) == (hvd.rank() == 0)
        assert os.listdir(folder) == [] or hvd.rank() == 0
        # Rank 0 reads its checkpoint, and the other ranks continue with its values.
        (weight, step), more = train_monitored(folder, steps=6)
        assert step == 3
        same_everywhere([weight, *more], "monitored.again")
        assert np.abs(weight - seen[-1]).max() > 0


def test_the_hook_is_made_anew_for_each_graph():
    hook = hvd.BroadcastGlobalVariablesHook(0, device="/cpu:0")
    for turn in range(2):
        with tf.Graph().as_default():
            variable = v1.get_variable("v", initializer=tf.constant(float(hvd.rank() + 10 * turn + 1)))
            with v1.train.MonitoredTrainingSession(hooks=[hook]) as session:
                assert session.run(variable) == 10 * turn + 1


@of_ranks_that_differ
def test_graphs_that_differ_are_refused_everywhere():
    with tf.Graph().as_default():
        for i in range(2 + (hvd.rank() == 0)):
            v1.get_variable(f"v{i}", initializer=tf.constant(float(hvd.rank())))
        hook = hvd.BroadcastGlobalVariablesHook(0)
        raises(
            tf.errors.FailedPreconditionError,
            "'variable 2' is on rank 0, but not on",
            lambda: v1.train.MonitoredTrainingSession(hooks=[hook]),
        )


def test_values_of_a_state_that_refer_to_variables():
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
