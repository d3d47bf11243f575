"""allreduce_gradients, value_and_grad and DistributedGradientTransformation. The reference is
one process that trains on the joined batches of all ranks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

import horovod.jax as hvd
from harness.rank import expect
from jax_support import on_jax

pytestmark = on_jax(2)

STEPS, ROWS = 8, 8


def params_of(seed):
    random = np.random.RandomState(seed)
    return {
        "a": jnp.asarray(random.randn(6, 16) * 0.3, jnp.float32),
        "b": jnp.zeros(16),
        "c": jnp.asarray(random.randn(16, 1) * 0.3, jnp.float32),
    }


def batch_of(rank, step):
    random = np.random.RandomState(100 * rank + step)
    x = random.rand(ROWS, 6).astype("float32")
    return x, (x.sum(1, keepdims=True) ** 2).astype("float32")


def loss_of(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["a"] + params["b"]) @ params["c"] - y) ** 2)


def train(optimizer, gradient, ranks, steps=STEPS):
    """(parameters, loss) after steps on the batches of `ranks`, joined; one compiled program with donated arrays."""
    params = params_of(0)
    state = optimizer.init(params)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, x, y):
        loss, gradients = gradient(params, x, y)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    losses = []
    for number in range(steps):
        x, y = (np.concatenate(parts) for parts in zip(*(batch_of(r, number) for r in ranks)))
        params, state, loss = step(params, state, x, y)
        losses.append(loss)
    return params, np.array(losses)


@functools.cache
def alone():
    """The reference, of rank 0: the others would compile and compute the same."""
    if hvd.rank() == 0:
        params, losses = train(optax.sgd(0.05, momentum=0.9), jax.value_and_grad(loss_of), range(hvd.size()))
        return hvd.broadcast_object(({key: np.array(value) for key, value in params.items()}, losses), 0)
    return hvd.broadcast_object(None, 0)


def agree(params, tolerance=2e-5):
    """Raise AssertionError unless these are the values of the reference, and the same on all ranks. NumPy compares: JAX
    compiles each operation for each shape."""
    wanted, _ = alone()
    for key in wanted:
        np.testing.assert_allclose(params[key], wanted[key], atol=tolerance)
    rows = np.asarray(hvd.allgather(np.concatenate([np.ravel(params[key]) for key in wanted])[None]))
    assert all((rows[0] == row).all() for row in rows)


def test_optimizer_equals_one_process():
    optimizer = hvd.DistributedGradientTransformation(optax.sgd(0.05, momentum=0.9))
    params, losses = train(optimizer, jax.value_and_grad(loss_of), [hvd.rank()])
    agree(params)
    np.testing.assert_allclose(hvd.allreduce(losses), alone()[1], atol=1e-5)
    assert type(optimizer) is type(optax.sgd(0.05, momentum=0.9))


def test_value_and_grad_and_options():
    options = {"gradient_predivide_factor": 2.0, "name": "mine", "process_set": hvd.global_process_set}
    agree(train(optax.sgd(0.05, momentum=0.9), hvd.value_and_grad(loss_of, **options), [hvd.rank()])[0])
    params, _ = train(
        hvd.DistributedGradientTransformation(
            optax.sgd(0.05, momentum=0.9), compression=hvd.Compression.bf16
        ),
        jax.value_and_grad(loss_of),
        [hvd.rank()],
    )
    # bfloat16 has 8 bits.
    for key, wanted in alone()[0].items():
        assert np.abs(np.asarray(params[key]) - wanted).max() < 0.05 * np.abs(wanted).max()
    (value, aux), gradients = hvd.value_and_grad(lambda p: (p.sum(), "aux"), has_aux=True)(jnp.ones(3))
    assert aux == "aux" and value == 3.0 and (gradients == 1).all()


def test_several_passes():
    optimizer = optax.MultiSteps(hvd.DistributedGradientTransformation(optax.sgd(0.1)), every_k_schedule=2)
    params = jnp.zeros(2)
    state = optimizer.init(params)
    step = jax.jit(optimizer.update)
    for number in range(4):
        updates, state = step(jnp.full(2, float(hvd.rank() + number)), state, params)
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(params, np.full(2, -0.1 * (0.5 + 2.5 + (hvd.size() - 1))), rtol=1e-6)


def test_buckets():
    """A small limit makes an operation of each array; the last come first."""
    tree = {f"p{i}": jnp.full((10,), float(i + hvd.rank())) for i in range(7)}
    for limit in (1, 40, 85, 1 << 20):
        found = jax.jit(lambda t, n=limit: hvd.allreduce_gradients(t, bucket_bytes=n))(tree)
        for i in range(7):
            np.testing.assert_allclose(found[f"p{i}"], np.full(10, i + (hvd.size() - 1) / 2))
    found = jax.jit(lambda t: hvd.allreduce_gradients(t, op=hvd.Sum, name="g", bucket_bytes=1))(tree)
    np.testing.assert_allclose(found["p3"], np.full(10, sum(3.0 + r for r in range(hvd.size()))))
    assert hvd.allreduce_gradients({}) == {}


def test_wrong_arguments():
    expect(
        ValueError,
        lambda: hvd.DistributedGradientTransformation(optax.sgd(0.1), gradient_predivide_factor=-1),
    )
    expect(TypeError, lambda: hvd.DistributedGradientTransformation("sgd"), "optax.GradientTransformation")
    unregistered = hvd.ProcessSet([0])
    expect(
        ValueError, lambda: hvd.DistributedGradientTransformation(optax.sgd(0.1), process_set=unregistered)
    )
    expect(
        ValueError, lambda: hvd.allreduce_gradients(jnp.ones(2), op=hvd.Sum, gradient_predivide_factor=2.0)
    )
