"""DistributedOptimizer: training on all ranks gives the result of one process with the joined batches."""

import numpy as np

from harness.rank import needs
from keras_support import (
    KERAS3,
    STEPS,
    TORCH,
    agree,
    compiled,
    data_of,
    hvd,
    joined,
    keras,
    layer_of,
    model_of,
    modes,
    numpy_of,
    of_rank_0,
    on,
    raises,
    same_everywhere,
    sgd,
    train_alone,
    train_together,
    trained_with_sgd,
    weights_of,
)

pytestmark = [on("torch", 2), on("tensorflow", 2)]

optimizers = keras.optimizers


def test_each_way_to_run_a_step():
    wanted = trained_with_sgd()
    for mode in modes():
        agree(train_together(hvd.DistributedOptimizer(sgd()), fit=True, **mode), wanted)


def test_class_and_attributes():
    plain = optimizers.Adam(0.01)
    optimizer = hvd.DistributedOptimizer(plain)
    assert type(optimizer).__name__ == "Adam"
    assert type(optimizer).__module__ == "horovod._keras"
    assert isinstance(optimizer, type(plain))
    assert type(optimizer) is not type(plain)
    assert optimizer._HAS_AGGREGATE_GRAD
    assert callable(optimizer.register_local_var)
    assert list(optimizer.variables()) == list(optimizer.variables)
    assert optimizer.get_config() == plain.get_config()
    again = type(optimizer).from_config(optimizer.get_config())
    assert type(again) is type(optimizer)
    if KERAS3:
        assert isinstance(keras.optimizers.get(optimizer), type(plain))


def test_several_optimizers():
    makes = (
        lambda: optimizers.AdamW(0.01, weight_decay=0.1, amsgrad=True),
        lambda: optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=2),
        lambda: optimizers.RMSprop(0.01, momentum=0.5),
        lambda: optimizers.Nadam(0.01),
        lambda: optimizers.Adagrad(0.01),
    )
    for make in makes if TORCH else makes[:2]:  # Keras on TensorFlow takes several times as long
        agree(train_together(hvd.DistributedOptimizer(make()), layer_of()), train_alone(make(), layer_of()))


def test_clipping_sees_reduced_gradients():
    for option in ({"clipnorm": 0.05}, {"global_clipnorm": 0.1}, {"clipvalue": 0.01}):
        wanted = train_alone(optimizers.SGD(0.5, **option))
        agree(train_together(hvd.DistributedOptimizer(optimizers.SGD(0.5, **option))), wanted)


def test_sum_and_predivide():
    size = hvd.size()
    wanted = train_alone(optimizers.SGD(0.05 * size))
    agree(train_together(hvd.DistributedOptimizer(optimizers.SGD(0.05), op=hvd.Sum)), wanted)
    predivided = hvd.DistributedOptimizer(optimizers.SGD(0.05 * size), gradient_predivide_factor=4.0)
    agree(train_together(predivided), wanted)


def test_compression():
    wanted = trained_with_sgd()
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        model = train_together(hvd.DistributedOptimizer(sgd(), compression=compression))
        error = np.abs(weights_of(model) - wanted).max()
        assert hvd.size() == 1 or 0 < error < 3e-2, error
        same_everywhere(weights_of(model))


def test_groups():
    wanted = trained_with_sgd()
    agree(train_together(hvd.DistributedOptimizer(sgd(), groups=2)), wanted)
    model = model_of()
    of_layers = [list(layer.trainable_weights) for layer in model.layers[1:]]
    agree(train_together(hvd.DistributedOptimizer(sgd(), groups=of_layers), model), wanted)


def in_double_batches(optimizer):
    """The weights of a model that one process trains on the joined batches, two at a time."""

    def train():
        model = layer_of()
        model.compile(optimizer, "mse", **compiled())
        for inputs, targets in zip(*(np.split(part, STEPS // 2) for part in joined(range(hvd.size())))):
            model.train_on_batch(inputs, targets)
        return model

    return of_rank_0(train)


def test_passes_are_summed_locally():
    # Two passes of equal batches, averaged, are one step with the batches of both.
    alone = in_double_batches(optimizers.SGD(0.02, momentum=0.9))
    for average in (True, False):
        rate = 0.02 if average else 0.01

        def make():
            return optimizers.SGD(rate, momentum=0.9)

        for mode in modes() if average else modes()[:1]:
            optimizer = hvd.DistributedOptimizer(
                make(), backward_passes_per_step=2, average_aggregated_gradients=average
            )
            agree(train_together(optimizer, layer_of(), **mode), alone)
            if KERAS3:
                assert int(numpy_of(optimizer.iterations)) == STEPS // 2
                assert int(numpy_of(optimizer._iterations)) == STEPS


@needs(KERAS3, "with Keras 2 Adam counts passes, as in Horovod for Keras 2")
def test_adam_counts_steps_where_passes_are_summed():
    alone = in_double_batches(optimizers.Adam(0.02))
    optimizer = hvd.DistributedOptimizer(
        optimizers.Adam(0.02), backward_passes_per_step=2, average_aggregated_gradients=True
    )
    agree(train_together(optimizer, layer_of()), alone)


@needs(KERAS3, "Keras 2 does not accumulate gradients")
def test_accumulation_of_keras():
    options = {"momentum": 0.9, "gradient_accumulation_steps": 2}
    wanted = train_alone(optimizers.SGD(0.1, **options))
    agree(train_together(hvd.DistributedOptimizer(optimizers.SGD(0.1, **options))), wanted)


def test_state_of_a_used_optimizer_is_kept():
    def used():
        model = model_of()
        optimizer = optimizers.SGD(0.1, momentum=0.9)
        model.compile(optimizer, "mse", **compiled())
        x, y = joined(range(hvd.size()))
        model.fit(x, y, batch_size=len(x), shuffle=False, verbose=0)
        return model, optimizer

    model, optimizer = used()
    wanted = train_alone(optimizer, model=model)
    model, optimizer = used()
    distributed = hvd.DistributedOptimizer(optimizer)
    assert int(numpy_of(distributed.iterations)) == 1
    agree(train_together(distributed, model), wanted)


def test_train_on_batch_and_two_optimizers():
    first, second = model_of(1), model_of(2)
    first.compile(hvd.DistributedOptimizer(sgd()), "mse", **compiled())
    second.compile(hvd.DistributedOptimizer(optimizers.Adam(0.01)), "mse", **compiled())
    x, y = data_of(hvd.rank())
    for _ in range(2):
        first.train_on_batch(x, y)
        second.train_on_batch(x, y)
    x, y = joined(range(hvd.size()))
    for model, optimizer, seed in ((first, sgd(), 1), (second, optimizers.Adam(0.01), 2)):

        def train(optimizer=optimizer, seed=seed):
            alone = model_of(seed)
            alone.compile(optimizer, "mse", **compiled())
            for _ in range(2):
                alone.train_on_batch(x, y)
            return alone

        agree(model, of_rank_0(train))


def test_a_learning_rate_schedule():
    def make():
        return optimizers.SGD(optimizers.schedules.ExponentialDecay(0.1, 2, 0.5))

    agree(train_together(hvd.DistributedOptimizer(make())), train_alone(make()))


def test_one_optimizer_wrapped_twice():
    plain = sgd()
    wanted = trained_with_sgd()
    for _ in range(2):
        agree(train_together(hvd.DistributedOptimizer(plain)), wanted)


def test_arguments_are_looked_at():
    for op in (hvd.Adasum if hasattr(hvd, "Adasum") else 2, 3, 4, 5, "mean", None, True):
        with raises(ValueError, "op currently only supports Average and Sum"):
            hvd.DistributedOptimizer(sgd(), op=op)
    with raises(ValueError, "gradient_predivide_factor not supported with op != Average"):
        hvd.DistributedOptimizer(sgd(), op=hvd.Sum, gradient_predivide_factor=2.0)
    for factor in (0.0, -2.0):
        with raises(ValueError, "gradient_predivide_factor must be > 0"):
            hvd.DistributedOptimizer(sgd(), gradient_predivide_factor=factor)
    with raises(ValueError, "backward_passes_per_step must be > 0"):
        hvd.DistributedOptimizer(sgd(), backward_passes_per_step=0)
    for groups in (0, -1, True, 1.5, "all", [1]):
        with raises(ValueError, "groups should be"):
            hvd.DistributedOptimizer(sgd(), groups=groups)
    with raises(ValueError, "DistributedOptimizer already"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd()))
    with raises(ValueError, "has not been registered"):
        hvd.DistributedOptimizer(sgd(), process_set=hvd.ProcessSet([0]))
    with raises(TypeError, "takes an optimizer of Keras"):
        hvd.DistributedOptimizer(object())


class WithMore(optimizers.SGD):
    """An optimizer with an argument that is not in its configuration."""

    def __init__(self, learning_rate=0.01, more=1, **options):
        super().__init__(learning_rate, **options)
        self.more, self.listed, self.helper = more, [more], WithMore


def test_what_was_set_besides_the_configuration():
    optimizer = hvd.DistributedOptimizer(WithMore(0.1, more=7, momentum=0.5))
    assert (optimizer.more, list(optimizer.listed), optimizer.momentum) == (7, [7], 0.5)
    assert optimizer.helper is WithMore
    plain = optimizers.AdamW(0.01, weight_decay=0.1)
    plain.exclude_from_weight_decay(var_names=["bias"])
    distributed = hvd.DistributedOptimizer(plain)
    names = [n for n in vars(plain) if n.startswith("_exclude_from_weight_decay")]
    assert names and all(getattr(distributed, n) == getattr(plain, n) for n in names)
    wanted = train_alone(plain)
    again = optimizers.AdamW(0.01, weight_decay=0.1)
    again.exclude_from_weight_decay(var_names=["bias"])
    agree(train_together(hvd.DistributedOptimizer(again)), wanted)


def test_nothing_is_kept_of_optimizers_that_are_gone():
    import gc
    import weakref

    left = []
    for _ in range(2):
        model = model_of()
        groups = [list(layer.trainable_weights) for layer in model.layers[1:]]
        train_together(hvd.DistributedOptimizer(sgd(), groups=groups), model)
        left += [weakref.ref(model.optimizer), weakref.ref(groups[0][0])]
        del model, groups
    keras.backend.clear_session() if hasattr(keras.backend, "clear_session") else keras.utils.clear_session()
    gc.collect()
    assert [r() is None for r in left] == [True] * 4, left
    assert type(hvd.DistributedOptimizer(sgd())) is type(hvd.DistributedOptimizer(sgd()))
    assert type(hvd.DistributedOptimizer(sgd(), op=hvd.Sum)) is not type(hvd.DistributedOptimizer(sgd()))


def test_compile_tolerates_what_old_scripts_pass():
    import warnings

    model = model_of()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.compile(
            hvd.DistributedOptimizer(sgd()), "mse", experimental_run_tf_function=False, **compiled()
        )
    texts = [str(w.message) for w in caught if "experimental_run_tf_function" in str(w.message)]
    assert len(texts) == (1 if KERAS3 else 0), texts
    if KERAS3:
        with raises(TypeError, "not_an_argument"):
            model.compile("sgd", "mse", not_an_argument=1)
    assert TORCH or model.optimizer is not None
