"""Less common uses of DistributedOptimizer: local variables, process sets, sparse and missing gradients, mixed
precision, custom training steps and loops."""

import numpy as np

from keras_support import (
    KERAS3,
    ROWS,
    STEPS,
    TOLERANCE,
    TORCH,
    agree,
    compiled,
    data_of,
    gradients_and_variables,
    hvd,
    joined,
    keras,
    mean_square,
    model_of,
    modes,
    numpy_of,
    of_rank_0,
    on,
    raises,
    same_everywhere,
    set_weights,
    sgd,
    train_alone,
    train_on,
    train_together,
    trained_with_sgd,
    weights_of,
)

pytestmark = [on("torch", 2), on("tensorflow", 2)]

optimizers = keras.optimizers


def test_registered_variables_stay_local():
    # The first layer has the gradients of this rank, divided by the number of ranks with scale_local_gradients.
    size = hvd.size()
    x, y = data_of(hvd.rank(), 1)
    alone, together, start = model_of(), model_of(), model_of().get_weights()
    for other, batch in ((alone, (x, y)), (together, joined(range(size), 1))):
        other.compile(optimizers.SGD(0.1), "mse", **compiled())
        other.train_on_batch(*batch)
    for scaled in (True, False):
        for partial in (True, False):
            model = model_of()
            first = model.layers[0]
            if partial and hasattr(hvd, "PartialDistributedOptimizer"):
                optimizer = hvd.PartialDistributedOptimizer(
                    optimizers.SGD(0.1), local_layers=first, scale_local_gradients=scaled
                )
            else:
                optimizer = hvd.DistributedOptimizer(optimizers.SGD(0.1), scale_local_gradients=scaled)
                for variable in first.trainable_weights:
                    optimizer.register_local_var(variable)
            model.compile(optimizer, "mse", **compiled())
            model.train_on_batch(x, y)
            found = model.get_weights()
            for i, (own, all_) in enumerate(zip(alone.get_weights(), together.get_weights())):
                factor = 1 / size if scaled else 1.0
                wanted = start[i] + (own - start[i]) * factor if i < 2 else all_
                np.testing.assert_allclose(found[i], wanted, rtol=0, atol=TOLERANCE)
    with raises(ValueError, "local_layers takes a Keras layer"):
        hvd.PartialDistributedOptimizer(sgd(), local_layers=["dense"])


@on("torch", 2, 3)
@on("tensorflow", 2)
def test_process_sets():
    others = hvd.add_process_set(list(range(1, hvd.size())))
    optimizer = hvd.DistributedOptimizer(sgd(), process_set=others)
    model = train_together(optimizer)
    ranks = [0] if hvd.rank() == 0 else others.ranks
    wanted = train_on(joined(ranks), ROWS * len(ranks), sgd())
    np.testing.assert_allclose(weights_of(model), weights_of(wanted), rtol=0, atol=TOLERANCE)
    hvd.remove_process_set(others)


def embedding_model(seed=0):
    model = keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            keras.layers.Embedding(7, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ]
    )
    set_weights(model, seed)
    return model


def words_of(rank):
    random = np.random.RandomState(7 + rank)
    return random.randint(0, 5 + rank % 2, (STEPS * ROWS, 3)), random.normal(size=(STEPS * ROWS, 3))


def test_gradients_of_embeddings():
    parts = [words_of(r) for r in range(hvd.size())]
    x, y = (
        np.concatenate([p[i].reshape(STEPS, ROWS, 3) for p in parts], axis=1).reshape(-1, 3) for i in (0, 1)
    )
    alone = of_rank_0(lambda: train_on((x, y), ROWS * hvd.size(), sgd(), embedding_model()))
    for dense, mode in [(False, mode) for mode in modes()] + [(True, modes()[0])]:
        optimizer = hvd.DistributedOptimizer(sgd(), sparse_as_dense=dense)
        fit = mode == modes()[-1]
        agree(train_on(words_of(hvd.rank()), ROWS, optimizer, embedding_model(), fit, **mode), alone)
    if not TORCH:
        model = embedding_model()
        model.compile(hvd.DistributedOptimizer(sgd(), backward_passes_per_step=2), "mse", **compiled())
        with raises(ValueError, "sparse_as_dense"):
            model.train_on_batch(*(part[:ROWS] for part in words_of(hvd.rank())))


def test_loop_of_ones_own():
    wanted = trained_with_sgd()
    x, y = data_of(hvd.rank())

    def loop(wrap):
        model, optimizer = model_of(), hvd.DistributedOptimizer(sgd())

        @wrap
        def step(inputs, targets):
            gradients, variables = gradients_and_variables(model, inputs, targets)
            optimizer.apply_gradients(zip(gradients, variables))

        for i in range(STEPS):
            step(x[i * ROWS : (i + 1) * ROWS], y[i * ROWS : (i + 1) * ROWS])
        return model

    agree(loop(lambda function: function), wanted)
    if not TORCH:
        import tensorflow as tf

        agree(loop(tf.function), wanted)


def test_train_step_of_ones_own():
    class Model(keras.Sequential):
        def train_step(self, data):
            gradients, variables = gradients_and_variables(self, *data[:2])
            self.optimizer.apply_gradients(zip(gradients, variables))
            return {"target": data[1][0, 0]}

    model = Model(model_of().layers)
    agree(train_together(hvd.DistributedOptimizer(sgd()), model), trained_with_sgd())


def test_gradients_that_are_asked_for():
    # By each name that optimizers have for the method. The result is not reduced again.
    legacy = () if KERAS3 else (lambda: optimizers.legacy.SGD(0.1, momentum=0.9),)
    for make in (sgd, *legacy):
        wanted = train_alone(make())
        for ask in ("compute_gradients", "_compute_gradients", "_aggregate_gradients"):
            model = model_of()
            optimizer = hvd.DistributedOptimizer(make(), op=hvd.Sum)
            x, y = data_of(hvd.rank())
            for i in range(STEPS):
                rows = slice(i * ROWS, (i + 1) * ROWS)
                if ask == "_aggregate_gradients":
                    gradients, variables = gradients_and_variables(model, x[rows], y[rows])
                    pairs = [(g / hvd.size(), v) for g, v in zip(gradients, variables)]
                    pairs = optimizer._aggregate_gradients(pairs)
                else:

                    def loss():
                        return mean_square(model, x[rows], y[rows]) / hvd.size()

                    pairs = getattr(optimizer, ask)(loss, model.trainable_weights)
                same_everywhere(np.concatenate([numpy_of(g).ravel() for g, _ in pairs]))
                applied = (
                    {} if KERAS3 or ask != "_aggregate_gradients" else {NOT_AGAIN[make is sgd]: make is sgd}
                )
                optimizer.apply_gradients(pairs, **applied)
                assert not optimizer._hvd.aggregated
            agree(model, wanted)
        if not KERAS3:
            minimized = model_of()
            optimizer = hvd.DistributedOptimizer(make())
            for i in range(STEPS):
                rows = slice(i * ROWS, (i + 1) * ROWS)
                optimizer.minimize(
                    lambda: mean_square(minimized, x[rows], y[rows]),
                    minimized.trainable_variables,
                )
            agree(minimized, wanted)


NOT_AGAIN = {True: "skip_gradients_aggregation", False: "experimental_aggregate_gradients"}


def half_model(seed=0):
    # In float32: with float16 the results would be too inexact to compare.
    layers = [
        keras.Input((6,), dtype="float32"),
        keras.layers.Dense(3, dtype="float32"),
    ]
    model = keras.Sequential(layers)
    set_weights(model, seed)
    return model


def scaler(inner):
    name = "LossScaleOptimizer"
    cls = getattr(optimizers, name, None) or getattr(keras.mixed_precision, name)
    return cls(inner, **({"initial_scale": 4.0, "dynamic_growth_steps": 3}))


def test_scaled_losses():
    wanted = train_alone(scaler(sgd()), model=half_model())
    graph = modes()[:2][-1]
    inside = scaler(hvd.DistributedOptimizer(sgd()))
    agree(train_together(inside, half_model(), fit=True, **graph), wanted, 1e-5)
    optimizer = hvd.DistributedOptimizer(scaler(sgd()))
    agree(train_together(optimizer, half_model()), wanted, 1e-5)
    assert type(optimizer).__module__ == "horovod._keras"
    assert "LossScaleOptimizer" in type(optimizer).__name__
    scale = optimizer.dynamic_scale if KERAS3 else optimizer.loss_scale
    assert float(numpy_of(scale)) == 8.0


def test_an_overflow_on_one_rank_skips_the_step_on_all():
    for make in (
        lambda passes: scaler(hvd.DistributedOptimizer(sgd(), backward_passes_per_step=passes)),
        lambda passes: hvd.DistributedOptimizer(scaler(sgd()), backward_passes_per_step=passes),
    ):
        for passes in (1, 2):
            model = half_model()
            optimizer = make(passes)
            model.compile(optimizer, "mse", **compiled())
            x, y = data_of(hvd.rank(), 1)
            before = weights_of(model)
            for step in range(passes):
                bad = hvd.rank() == hvd.size() - 1 and step == 0
                model.train_on_batch(x * (np.inf if bad else 1.0), y)
            np.testing.assert_array_equal(weights_of(model), before)
            scale = optimizer.dynamic_scale if KERAS3 else optimizer.loss_scale
            assert float(numpy_of(scale)) == 2.0, "the scale was not lowered on this rank"
            for _ in range(passes):
                model.train_on_batch(x, y)
            assert (weights_of(model) != before).any()
            same_everywhere(weights_of(model))


def test_mixed_precision():
    policy = keras.mixed_precision
    before = policy.global_policy() if hasattr(policy, "global_policy") else policy.dtype_policy()
    (policy.set_global_policy if hasattr(policy, "set_global_policy") else policy.set_dtype_policy)(
        "mixed_float16"
    )
    try:
        model = model_of()
        optimizer = hvd.DistributedOptimizer(optimizers.Adam(0.01))
        model = train_together(optimizer, model)
        assert "LossScaleOptimizer" in type(model.optimizer).__name__
        assert np.isfinite(weights_of(model)).all()
        assert (weights_of(model) != weights_of(model_of())).any()
        same_everywhere(weights_of(model))
    finally:
        (policy.set_global_policy if hasattr(policy, "set_global_policy") else policy.set_dtype_policy)(
            before
        )


@on("torch", 2, 3)
@on("tensorflow", 2)
def test_ranks_whose_models_differ():
    last = hvd.rank() == hvd.size() - 1
    x, y = data_of(hvd.rank(), 1)

    def one_step(model, **options):
        model.compile(hvd.DistributedOptimizer(sgd(), **options), "mse", **compiled())
        model.train_on_batch(x[:, : model.input_shape[-1]], y[:, : model.output_shape[-1]])

    with raises(ValueError, "models or optimizers differ", "variable 4 is", "(8, 3)", "(8, 2)"):
        one_step(model_of(outputs=2 if last else 3, hidden=2))
    model = model_of(hidden=2)
    model.layers[0].trainable = not last
    with raises(ValueError, "models or optimizers differ", "(6, 8)", "(8, 8)"):
        one_step(model)
    longer = model_of(hidden=2)
    if last:
        longer = keras.Sequential([*longer.layers, keras.layers.Dense(3)])
        longer.build((None, 6))
    with raises(ValueError, "there are 6 trainable variables on rank 0, but 8 on", "(3, 3)"):
        one_step(longer)
    with raises(ValueError, "backward_passes_per_step is 1 on rank 0, but 2 on"):
        one_step(model_of(), backward_passes_per_step=2 if last else 1)
    one_step(model_of())  # and training continues
