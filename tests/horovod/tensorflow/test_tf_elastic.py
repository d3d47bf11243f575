"""horovod.tensorflow.elastic on ranks of a job that is not elastic: states, and the loop of run()."""

import numpy as np
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.tensorflow.util import may_be_of_operation
from tf_support import raises

pytestmark = pytest.mark.ranks(2, framework="tensorflow")


def same_everywhere(tensor):
    rows = hvd.allgather(tf.convert_to_tensor(tensor)[tf.newaxis]).numpy()
    assert all(np.array_equal(rows[0], row) for row in rows)


def trained(seed):
    """A model and its optimizer, after two steps of this rank alone, and the function that makes a step."""
    tf.keras.utils.set_random_seed(seed)
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(3), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.Adam(0.1)

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(tf.random.normal([8, 4]))))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    step()
    step()
    return model, optimizer, step


def values(model, optimizer):
    variables = optimizer.variables
    variables = [*model.variables, *(variables() if callable(variables) else variables)]
    return np.concatenate([np.asarray(v.numpy(), np.float64).ravel() for v in variables])


def test_states_go_back_to_their_last_commit():
    model, optimizer, step = trained(hvd.rank())
    variables = tf.Variable([1.0, 2.0]), tf.Variable(3, dtype=tf.int64)
    states = [
        hvd.elastic.TensorFlowKerasState(model, optimizer, batch=3, losses=[1.0]),
        hvd.elastic.TensorFlowState(variables, batch=3, losses=[1.0]),
    ]

    def change():
        step()
        variables[0].assign_add([1.0, 1.0])
        variables[1].assign(tf.cast(hvd.rank() + 50, tf.int64))
        for state in states:
            state.batch += 1
            state.losses.append(2.0)

    def now():
        plain = [(state.batch, state.losses) for state in states]
        return values(model, optimizer).tolist(), [v.numpy().tolist() for v in variables], plain

    before = repr(now())
    for _ in range(2):
        change()
        assert repr(now()) != before
        for state in states:
            state.restore()
        assert repr(now()) == before
    change()
    for state in states:
        state.commit()
    kept = repr(now())
    change()
    for state in states:
        state.restore()
    assert repr(now()) == kept


def test_states_are_those_of_rank_0_after_sync():
    model, optimizer, step = trained(hvd.rank())
    variable = tf.Variable([float(hvd.rank()), 7.0])
    states = [
        hvd.elastic.TensorFlowKerasState(model, optimizer, step=hvd.rank() + 1),
        hvd.elastic.TensorFlowState([variable], step=hvd.rank() + 1),
    ]
    for state in states:
        state.sync()
        assert state.step == 1
    same_everywhere(values(model, optimizer))
    assert variable.numpy().tolist() == [0.0, 7.0]
    synced = values(model, optimizer)
    step()
    states[0].restore()
    np.testing.assert_array_equal(values(model, optimizer), synced)


def test_a_new_rank_has_the_variables_of_the_optimizer():
    model, optimizer, _ = trained(hvd.rank())
    if hvd.rank() > 0:
        optimizer = tf.keras.optimizers.Adam(0.1)  # has made no step, as on a new rank
    hvd.elastic.TensorFlowKerasState(model, optimizer).sync()
    same_everywhere(values(model, optimizer))


def test_a_model_must_be_built():
    model = tf.keras.Sequential([tf.keras.layers.Dense(3)])
    raises(ValueError, "not built", lambda: hvd.elastic.TensorFlowKerasState(model))


def test_run_calls_again_after_an_update_and_a_failure():
    model, optimizer, step = trained(hvd.rank())
    state = hvd.elastic.TensorFlowKerasState(model, optimizer, step=0)
    calls, resets = [], []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])

    @tf.function
    def reduced(x):
        return hvd.allreduce(x, op=hvd.Sum)

    @hvd.elastic.run
    def train(state, more):
        calls.append((state.step, more))
        assert float(reduced(tf.constant(1.0))) == hvd.size()
        state.step += 1
        if len(calls) == 1:
            state.commit()
            raise HostsUpdatedInterrupt(skip_sync=True)
        if len(calls) == 2:
            step()
            raise HorovodInternalError("raised by the program")  # the step is not committed
        return "value"

    assert train(state, 5) == "value"
    assert calls == [(0, 5), (1, 5), (1, 5)] and resets == [hvd.size()] * 2
    same_everywhere(values(model, optimizer))


def test_run_raises_mistakes_of_the_program_at_once():
    calls = []

    @hvd.elastic.run
    def train(state):
        calls.append(1)
        hvd.allreduce(tf.zeros([2 + hvd.rank()]), name="mismatch")

    raises(tf.errors.FailedPreconditionError, "mismatch", lambda: train(hvd.elastic.TensorFlowState(step=0)))
    assert calls == [1]
    assert not may_be_of_operation(ValueError("x"))
    assert may_be_of_operation(tf.errors.UnknownError(None, None, "x"))


def test_states_of_a_session():
    """A graph of TensorFlow 1."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("v", initializer=float(hvd.rank()))
        session.run(tf.compat.v1.global_variables_initializer())
        state = hvd.elastic.TensorFlowState(session=session, step=hvd.rank())
        session.run(variable.assign(9.0))
        state.restore()
        assert session.run(variable) == float(hvd.rank())
        state.sync()
        assert session.run(variable) == 0.0 and state.step == 0
        session.run(variable.assign(5.0))
        state.commit()
        session.run(variable.assign(6.0))
        state.restore()
        assert session.run(variable) == 5.0
