"""Gradients that some or all ranks do not have, and of gradients that are not finite on some ranks."""

import numpy as np

from keras_support import (
    KERAS3,
    TOLERANCE,
    TORCH,
    data_of,
    gradients_and_variables,
    hvd,
    keras,
    model_of,
    numpy_of,
    on,
    raises,
    same_everywhere,
)

pytestmark = [on("torch", 2, 3), on("tensorflow", 2)]

optimizers = keras.optimizers
Variable = keras.Variable if KERAS3 else __import__("tensorflow").Variable


def test_missing_gradients():
    # A variable without a gradient on any rank does not change. If another rank has a gradient, zeros are reduced.
    model = model_of()
    optimizer = hvd.DistributedOptimizer(optimizers.SGD(1.0))
    x, y = data_of(hvd.rank(), 1)
    start = model.get_weights()
    last = hvd.size() - 1
    parts = []
    for rank in range(hvd.size()):
        gradients, variables = gradients_and_variables(model, *data_of(rank, 1))
        parts.append([numpy_of(g.detach() if TORCH else g) for g in gradients])
    for step in range(2):
        for v, value in zip(variables, start):
            v.assign(value)
        gradients, variables = gradients_and_variables(model, x, y)
        gradients = list(gradients)
        gradients[0] = None
        who = last if step == 0 else 0
        if hvd.rank() != who:
            gradients[3] = None
        optimizer.apply_gradients(zip(gradients, variables))
        for i, (value, begun) in enumerate(zip(model.get_weights(), start)):
            mean = sum(part[i] for part in parts) / hvd.size()
            change = 0 if i == 0 else parts[who][3] / hvd.size() if i == 3 else mean
            np.testing.assert_allclose(value, begun - change, rtol=0, atol=TOLERANCE)


def test_gradients_that_come_and_go():
    # In eager steps the variables that have a gradient may differ between steps and between ranks.
    model = model_of()
    optimizer = hvd.DistributedOptimizer(optimizers.SGD(1.0))
    variables = model.trainable_weights
    ops_of = keras.ops.convert_to_tensor if KERAS3 else __import__("tensorflow").constant
    for step in range(4):
        start = model.get_weights()
        ones = [ops_of(np.full(v.shape, hvd.rank() + 1.0)) for v in variables]
        present = [[(i + step + r) % 3 == 0 for i in range(len(ones))] for r in range(hvd.size())]
        mine = [g if there else None for g, there in zip(ones, present[hvd.rank()])]
        optimizer.apply_gradients(zip(mine, variables))
        for i, (value, begun) in enumerate(zip(model.get_weights(), start)):
            total = sum(r + 1.0 for r in range(hvd.size()) if present[r][i])
            np.testing.assert_allclose(value, begun - total / hvd.size(), rtol=0, atol=TOLERANCE)


def tensor(value):
    value = np.asarray(value, np.float64)
    return keras.ops.convert_to_tensor(value) if KERAS3 else __import__("tensorflow").constant(value)


def steps_with(optimizer, *patterns, compiled=False, alone=False):
    """Values of two variables after each step. A pattern says which variables have a gradient in a step; the means over
    the ranks are 1 and 2."""
    p, q = Variable(np.array([1.0, 2.0])), Variable(np.array([1.0, 2.0]))
    value = 1.0 if alone else (hvd.rank() + 1) / ((hvd.size() + 1) / 2)

    def step(first, second):
        gradients = [tensor([value, value]) if first else None, tensor([2 * value] * 2) if second else None]
        optimizer.apply_gradients(zip(gradients, [p, q]))

    if compiled:
        step = __import__("tensorflow").function(step, jit_compile=compiled == "xla")
    found = []
    for pattern in patterns:
        step(*pattern)
        found.append([numpy_of(p), numpy_of(q)])
    return np.array(found)


def momentum():
    return optimizers.SGD(0.1, momentum=0.9)


def test_what_no_rank_has_is_left_alone():
    # With a gradient of zeros the velocity would change the variable, which plain Keras does not.
    both, first, second = (True, True), (True, False), (False, True)
    begins_with_both, begins_with_one = (both, first, both, second), (first, both, first, second)
    cases = [(False, begins_with_both), (False, begins_with_one)]
    if not TORCH:  # a function is traced for each pattern, so each kind of function has one order of them
        cases += [(True, begins_with_one), ("xla", begins_with_both)]
    for compiled, patterns in cases:
        wanted = steps_with(momentum(), *patterns, alone=True)
        found = steps_with(hvd.DistributedOptimizer(momentum()), *patterns, compiled=compiled)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12, err_msg=f"{compiled} {patterns}")
        same_everywhere(found)


def test_zeros_count_where_another_rank_has_a_gradient():
    alone = hvd.rank() == 0
    found = steps_with(
        hvd.DistributedOptimizer(optimizers.SGD(1.0)), (True, True), (True, alone), (True, False)
    )
    of_rank_0 = 2 / ((hvd.size() + 1) / 2) / hvd.size()
    np.testing.assert_allclose(np.diff(found[:, 1, 0]), [-of_rank_0, 0], rtol=0, atol=1e-12)
    same_everywhere(found)


@on("tensorflow", 2)  # PyTorch does not trace
def test_a_rank_that_traces_anew_alone():
    last = hvd.rank() == hvd.size() - 1
    one, both = (True, False), (True, True)
    for compiled, before, after in ((True, one, both), ("xla", both, one)):
        optimizer = hvd.DistributedOptimizer(momentum())
        with raises(Exception, "Mismatched"):
            steps_with(optimizer, before, after if last else before, compiled=compiled)
    same_everywhere(steps_with(hvd.DistributedOptimizer(momentum()), (True, True)))  # and training continues


@on("tensorflow", 2)  # on PyTorch Keras has no sparse gradients
def test_a_sparse_gradient_where_there_was_a_dense_one():
    import tensorflow as tf

    size, rank = hvd.size(), hvd.rank()
    rows = tf.IndexedSlices(tf.fill([1, 2], rank + 1.0), tf.constant([1]), tf.constant([3, 2]))
    dense = tf.convert_to_tensor(rows)
    mean = (size + 1) / 2
    for first, then in ((dense, rows), (rows, dense)):
        variable, optimizer = tf.Variable(tf.zeros([3, 2])), hvd.DistributedOptimizer(optimizers.SGD(1.0))
        for gradient in (first, then if rank == 0 else first, then):
            optimizer.apply_gradients([(gradient, variable)])
        np.testing.assert_allclose(variable.numpy(), [[0, 0], [-3 * mean] * 2, [0, 0]], rtol=1e-6)


def test_an_overflow_of_a_local_variable_is_everybodys():
    cls = getattr(optimizers, "LossScaleOptimizer", None) or keras.mixed_precision.LossScaleOptimizer
    for outside in (True, False):
        optimizer = optimizers.SGD(0.1)
        if outside:
            distributed = hvd.DistributedOptimizer(optimizer)
            optimizer = cls(distributed, initial_scale=4.0)
        else:
            distributed = optimizer = hvd.DistributedOptimizer(cls(optimizer, initial_scale=4.0))
        shared, own = Variable(np.array([1.0])), Variable(np.array([1.0]))
        distributed.register_local_var(own)
        for bad in (True, False):
            infinite = bad and hvd.rank() == hvd.size() - 1
            gradients = [tensor([4.0]), tensor([np.inf if infinite else 4.0])]
            if not KERAS3:
                gradients = optimizer.get_unscaled_gradients(gradients)
            optimizer.apply_gradients(zip(gradients, [shared, own]))
            if bad:
                assert numpy_of(shared)[0] == numpy_of(own)[0] == 1.0
        scale = float(numpy_of(optimizer.dynamic_scale if KERAS3 else optimizer.loss_scale))
        assert scale == 2.0, scale
        assert numpy_of(shared)[0] < 1.0
        same_everywhere([scale, numpy_of(shared)[0]])


def passes_with(patterns, compiled=False, passes=2):
    """Values of two variables after several passes, with `passes` passes per step. A pattern says which gradients are 1;
    the others are None."""
    p, q = Variable(np.array([1.0])), Variable(np.array([1.0]))
    optimizer = hvd.DistributedOptimizer(optimizers.SGD(1.0), backward_passes_per_step=passes)

    def step(first, second):
        optimizer.apply_gradients(
            [(tensor([1.0]) if first else None, p), (tensor([1.0]) if second else None, q)]
        )

    if compiled:
        step = __import__("tensorflow").function(step, jit_compile=compiled == "xla")
    for pattern in patterns:
        step(*pattern)
    found = [numpy_of(p)[0], numpy_of(q)[0]]
    same_everywhere(found)
    return found


def test_passes_in_which_one_rank_has_a_gradient():
    share = 1 / hvd.size()
    for compiled in (False,) if TORCH else (False, True, "xla"):
        found = passes_with([(True, hvd.rank() == 0)] * 4, compiled)
        np.testing.assert_allclose(found, [-3.0, 1 - 4 * share], rtol=0, atol=1e-12, err_msg=str(compiled))


def test_passes_in_which_gradients_come_and_go():
    for first in (True, False):
        found = passes_with([(True, first), (True, not first)] * 2)
        np.testing.assert_allclose(found, [-3.0, -1.0], rtol=0, atol=1e-12)


def test_passes_take_the_same_variables():
    optimizer = hvd.DistributedOptimizer(optimizers.SGD(1.0), backward_passes_per_step=2)
    p, q = Variable(np.array([1.0])), Variable(np.array([1.0]))
    optimizer.apply_gradients([(tensor([1.0]), p), (tensor([1.0]), q)])
    with raises(ValueError, "the same variables each time"):
        optimizer.apply_gradients([(tensor([1.0]), q), (tensor([1.0]), p)])


def test_a_rank_without_any_gradient():
    p, q = Variable(np.array([1.0])), Variable(np.array([1.0]))
    optimizer = hvd.DistributedOptimizer(optimizers.SGD(1.0))
    for _ in range(2):
        optimizer.apply_gradients([(tensor([1.0]) if hvd.rank() == 0 else None, p), (None, q)])
    found = [numpy_of(p)[0], numpy_of(q)[0]]
    np.testing.assert_allclose(found, [1 - 2 / hvd.size(), 1.0], rtol=0, atol=1e-12)


def test_scaled_losses_of_ranks_without_shared_gradients():
    # One rank has no gradient that is reduced, and a gradient that is not reduced overflows there.
    cls = getattr(optimizers, "LossScaleOptimizer", None) or keras.mixed_precision.LossScaleOptimizer
    for bad in (True, False):
        distributed = hvd.DistributedOptimizer(optimizers.SGD(1.0))
        optimizer = cls(distributed, initial_scale=4.0)
        shared, own = Variable(np.array([1.0])), Variable(np.array([1.0]))
        distributed.register_local_var(own)
        infinite = bad and hvd.rank() == hvd.size() - 1
        gradients = [tensor([4.0]) if hvd.rank() == 0 else None, tensor([np.inf if infinite else 4.0])]
        if not KERAS3:
            gradients = optimizer.get_unscaled_gradients(gradients)
        optimizer.apply_gradients(zip(gradients, [shared, own]))
        scale = float(numpy_of(optimizer.dynamic_scale if KERAS3 else optimizer.loss_scale))
        wanted = [2.0, 1.0] if bad else [4.0, 1 - 1 / hvd.size()]
        assert [scale, numpy_of(shared)[0]] == wanted, (scale, shared, wanted)
