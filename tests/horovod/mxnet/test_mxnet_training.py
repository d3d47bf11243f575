"""DistributedTrainer, DistributedOptimizer and broadcast_parameters. The reference is one process that trains on the
joined batches of all ranks."""

import pickle
import warnings

import numpy as np

from harness.rank import expect
from mxnet_support import autograd, gluon, hvd, mx, on_mxnet

pytestmark = on_mxnet(2)

STEPS, ROWS = 6, 8


def net_of(seed, deferred=False):
    """A model with two layers whose weights depend on the seed."""
    mx.random.seed(seed)
    net = gluon.nn.HybridSequential()
    known = {} if deferred else {"in_units": 6}
    net.add(gluon.nn.Dense(8, activation="tanh", **known))
    net.add(gluon.nn.Dense(1, **({} if deferred else {"in_units": 8})))
    net.initialize(mx.init.Xavier())
    return net


def weights_of(net):
    parameters = net.collect_params()
    return np.concatenate([parameters[key].data().asnumpy().ravel() for key in sorted(parameters)])


def batch_of(rank, step):
    random = np.random.RandomState(100 * rank + step)
    x = random.rand(ROWS, 6).astype("float32")
    return x, (x.sum(1, keepdims=True) ** 2).astype("float32")


def train(net, trainer, ranks):
    """Steps on the batches of `ranks`, joined."""
    for step in range(STEPS):
        x, y = (np.concatenate(parts) for parts in zip(*(batch_of(r, step) for r in ranks)))
        with autograd.record():
            loss = ((net(mx.nd.array(x)) - mx.nd.array(y)) ** 2).mean()
        loss.backward()
        trainer.step(1)


def same_everywhere(values):
    rows = hvd.allgather(mx.nd.array(values[None], dtype=values.dtype)).asnumpy()
    assert all((rows[0] == row).all() for row in rows)


def trained_alone(optimizer, arguments):
    net = net_of(0)
    train(net, gluon.Trainer(net.collect_params(), optimizer, arguments, kvstore=None), range(hvd.size()))
    return weights_of(net)


def test_trainer_equals_one_process():
    for optimizer, arguments in (("sgd", {"learning_rate": 0.05, "momentum": 0.9}), ("adam", {})):
        wanted = trained_alone(optimizer, arguments)
        for options in ({}, {"num_groups": 2}, {"gradient_predivide_factor": 2.0}, {"prefix": "p."}):
            net = net_of(hvd.rank())
            hvd.broadcast_parameters(net.collect_params(), root_rank=0)
            trainer = hvd.DistributedTrainer(net.collect_params(), optimizer, dict(arguments), **options)
            train(net, trainer, [hvd.rank()])
            np.testing.assert_allclose(weights_of(net), wanted, rtol=2e-5, atol=2e-6)
            same_everywhere(weights_of(net))


def test_compressed_gradients():
    net = net_of(0)
    arguments = {"learning_rate": 0.05}
    train(
        net,
        hvd.DistributedTrainer(net.collect_params(), "sgd", arguments, hvd.Compression.fp16),
        [hvd.rank()],
    )
    wanted = trained_alone("sgd", arguments)
    np.testing.assert_allclose(weights_of(net), wanted, rtol=1e-2, atol=1e-3)
    assert not np.array_equal(weights_of(net), wanted)
    same_everywhere(weights_of(net))
    assert hvd.Compression.fp16.compress(mx.nd.ones((2,), dtype="int32"))[1] is None


def test_hybridized_and_deferred():
    """Shapes are known in the first forward pass: then the root's values are sent."""
    for hybrid in (False, True):
        net = net_of(10 + hvd.rank(), deferred=True)
        if hybrid:
            net.hybridize()
        hvd.broadcast_parameters(net.collect_params(), root_rank=hvd.size() - 1, prefix=f"h{hybrid}.")
        net(mx.nd.ones((2, 6)))
        wanted = net_of(10 + hvd.size() - 1, deferred=True)
        wanted(mx.nd.ones((2, 6)))
        np.testing.assert_array_equal(weights_of(net), weights_of(wanted))
        train(net, hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.05}), [hvd.rank()])
        same_everywhere(weights_of(net))


def test_broadcast_of_arrays():
    arrays = {"b": mx.nd.full((3,), hvd.rank()), "a": mx.nd.full((2,), hvd.rank(), dtype="int64")}
    hvd.broadcast_parameters(arrays, root_rank=hvd.size() - 1)
    assert (arrays["a"].asnumpy() == hvd.size() - 1).all() and (arrays["b"].asnumpy() == hvd.size() - 1).all()
    expect(ValueError, lambda: hvd.broadcast_parameters([arrays["a"]]), "takes a dict", "collect_params")
    if hvd.rank() == 0:
        expect(ValueError, lambda: hvd.broadcast_parameters({"a": 3.0}), "parameter.a", "NDArray")
    else:
        expect(
            hvd.HorovodInternalError,
            lambda: hvd.broadcast_parameters({"a": arrays["a"]}),
            "parameter.a",
            "NDArray is required",
        )


def test_process_set():
    own = [hvd.add_process_set([r]) for r in range(hvd.size())][hvd.rank()]
    net = net_of(0)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.05}, process_set=own)
    train(net, trainer, [hvd.rank()])
    alone = net_of(0)
    train(
        alone,
        gluon.Trainer(alone.collect_params(), "sgd", {"learning_rate": 0.05}, kvstore=None),
        [hvd.rank()],
    )
    np.testing.assert_allclose(weights_of(net), weights_of(alone), rtol=1e-6, atol=1e-7)


def test_optimizer_delegates():
    inner = mx.optimizer.create("sgd", learning_rate=1.0, momentum=0.5)
    optimizer = hvd.DistributedOptimizer(inner)
    assert isinstance(optimizer, mx.optimizer.Optimizer) and optimizer.momentum == 0.5
    optimizer.set_learning_rate(0.5)
    optimizer.rescale_grad = 0.25
    assert inner.learning_rate == 0.5 and inner.rescale_grad == 0.25
    updater = mx.optimizer.get_updater(optimizer)
    weights = [mx.nd.ones((4,)), mx.nd.ones((2, 2))]
    gradients = [mx.nd.full((4,), 8.0 * hvd.rank()), mx.nd.full((2, 2), 8.0)]
    updater([0, 1], gradients, weights)
    np.testing.assert_allclose(weights[0].asnumpy(), 1 - 0.5 * 0.25 * 8 * (hvd.size() - 1) / 2)
    np.testing.assert_allclose(weights[1].asnumpy(), 1 - 0.5 * 0.25 * 8)
    assert optimizer.num_update == inner.num_update == 1
    again = pickle.loads(pickle.dumps(optimizer))
    assert type(again) is hvd.DistributedOptimizer and again.learning_rate == 0.5
    assert again.__dict__ is again._optimizer.__dict__
    expect(ValueError, lambda: hvd.DistributedOptimizer("sgd"), "mx.optimizer.create()")
    expect(ValueError, lambda: hvd.DistributedOptimizer(inner, gradient_predivide_factor=-1), "must be > 0")
    expect(AttributeError, lambda: optimizer.no_such_attribute)


def test_trainer_takes_the_inner_optimizer():
    net = net_of(0)
    inner = mx.optimizer.create("sgd", learning_rate=0.05)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = hvd.DistributedTrainer(net.collect_params(), hvd.DistributedOptimizer(inner))
    ours = [w.filename for w in caught if "DistributedOptimizer" in str(w.message)]
    assert trainer.optimizer is inner and ours == [__file__]
    train(net, trainer, [hvd.rank()])
    np.testing.assert_allclose(
        weights_of(net), trained_alone("sgd", {"learning_rate": 0.05}), rtol=2e-5, atol=2e-6
    )


def test_module():
    """Module.fit with kvstore=None equals one process on the joined data."""

    def fit(optimizer, ranks):
        data = mx.sym.var("data")
        output = mx.sym.FullyConnected(data, num_hidden=1, name="f")
        output = mx.sym.LinearRegressionOutput(output, mx.sym.var("label"), name="out")
        batches = [[np.concatenate(p) for p in zip(*(batch_of(r, s) for r in ranks))] for s in range(STEPS)]
        x, y = (np.concatenate(parts) for parts in zip(*batches))
        iterator = mx.io.NDArrayIter(x, y, batch_size=ROWS * len(ranks), label_name="label")
        module = mx.mod.Module(output, data_names=["data"], label_names=["label"])
        module.bind(iterator.provide_data, iterator.provide_label)
        module.init_params(mx.init.Constant(0.1))
        module.fit(
            iterator,
            num_epoch=2,
            optimizer=optimizer(rescale=1.0 / (ROWS * len(ranks))),
            kvstore=None,
            eval_metric="mse",
        )
        arguments, _ = module.get_params()
        return np.concatenate([arguments[key].asnumpy().ravel() for key in sorted(arguments)])

    def plain(rescale):
        return mx.optimizer.create("sgd", learning_rate=0.1, rescale_grad=rescale)

    wanted = fit(plain, range(hvd.size()))
    found = fit(lambda rescale: hvd.DistributedOptimizer(plain(rescale)), [hvd.rank()])
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    same_everywhere(found)


def test_mistakes_fail_everywhere():
    """The gradients of one rank cannot be sent: each rank's step fails, and the others hear why."""
    net = net_of(0)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.05})
    if hvd.rank() == 0:
        parameter = next(iter(net.collect_params().values()))
        parameter._grad = [parameter._grad[0].astype("bool")]
        expect(ValueError, trainer.allreduce_grads, "gradient.", "bool is not supported")
    else:
        expect(hvd.HorovodInternalError, trainer.allreduce_grads, "bool is not supported")


def test_parameters_that_differ_are_refused_everywhere():
    odd = hvd.rank() == 1
    arrays = {"a": mx.nd.full((2,), hvd.rank()), "c" if odd else "b": mx.nd.ones((2,))}
    expect(
        hvd.HorovodInternalError,
        lambda: hvd.broadcast_parameters(arrays),
        "'parameter.c' is on rank 1, but not on rank 0",
    )
    assert (arrays["a"].asnumpy() == hvd.rank()).all()
    # Deferred parameters may have any shape, but must be on all ranks.
    net = gluon.nn.Dense(2, prefix="odd_" if odd else "even_")
    net.initialize()
    expect(
        hvd.HorovodInternalError,
        lambda: hvd.broadcast_parameters(net.collect_params()),
        "'parameter.odd_bias' is on rank 1, but not on rank 0",
    )
