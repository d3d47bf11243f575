"""Programs of elastic jobs on JAX: compiled programs that were traced before a change of the ranks work after it."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import optax

import elastic_programs
import horovod.jax as hvd


def programs():
    """Steps in a compiled program that is given its arrays, so that a failed step leaves none of them."""
    hvd.init()
    params = {"w": jnp.zeros(50), "b": jnp.ones(())}
    optimizer = hvd.DistributedGradientTransformation(optax.sgd(0.5, momentum=0.5))
    state = hvd.elastic.JaxState(
        params=params, opt_state=optimizer.init(params), key=jax.random.key(3), steps=0, seen=[0]
    )

    def loss_of(params):
        return params["w"].sum() + params["b"]

    def step_of(params, opt_state):
        gradients = jax.grad(loss_of)(params)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        ranks = hvd.allgather(jnp.ones((1,)), name="ranks")
        return optax.apply_updates(params, updates), opt_state, hvd.allreduce(jnp.ones(()), hvd.Sum), ranks

    step = jax.jit(step_of, donate_argnums=(0, 1))

    @hvd.elastic.run
    def train(state):
        steps = elastic_programs.Steps()
        while steps.go_on():
            state.params, state.opt_state, summed, ranks = step(state.params, state.opt_state)
            assert int(summed) == hvd.size() == len(ranks)
            state.key, _ = jax.random.split(state.key)
            state.steps += 1
            state.commit()
        return state.steps

    steps = train(state)
    velocity = wanted = 0.0
    key = jax.random.key(3)
    for _ in range(steps):
        velocity = 0.5 * velocity + 1
        wanted -= 0.5 * velocity
        key, _ = jax.random.split(key)
    elastic_programs.close(state.params["w"], np.full(50, wanted))
    elastic_programs.close(state.params["b"], 1 + wanted)
    assert (jax.random.key_data(key) == jax.random.key_data(state.key)).all()
    elastic_programs.done(steps, hvd.rank(), hvd.size())


if __name__ == "__main__":
    elastic_programs.main(globals())
