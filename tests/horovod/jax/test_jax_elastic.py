"""horovod.jax.elastic on ranks of a job that is not elastic: states, and the loop of run()."""

import os
import shutil
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import horovod.jax as hvd
from harness.rank import expect
from horovod.common import _elastic_state
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt, OperationFailedError
from horovod.jax.elastic import copied, restored

pytestmark = pytest.mark.ranks(2, framework="jax")


def tree(seed):
    """Values of many types."""
    key = jax.random.key(seed)
    params = {"w": jax.random.normal(key, (4, 3)), "b": jnp.arange(3, dtype=jnp.bfloat16), "none": None}
    return {
        "params": params,
        "opt_state": optax.adam(0.1).init(params),
        "key": key,
        "old_key": jax.random.PRNGKey(seed),
        "numpy": np.full(3, seed, np.float64),
        "numbers": (1, 2.5, True),
    }


def texts(values):
    """Trees as texts, with all values and types."""
    return [
        str(jax.random.key_data(x))
        if jnp.issubdtype(getattr(x, "dtype", int), jax.dtypes.prng_key)
        else repr(x)
        for x in jax.tree_util.tree_leaves(values)
    ]


def test_copies_are_equal_and_use_memory_again():
    first, second = tree(1), tree(2)
    copies = copied(first, None)
    assert texts(restored(copies)) == texts(first)
    places = [c.values.ctypes.data for c in jax.tree_util.tree_leaves(copies) if hasattr(c, "values")]
    copies = copied(second, copies)
    assert texts(restored(copies)) == texts(second)
    assert [c.values.ctypes.data for c in jax.tree_util.tree_leaves(copies) if hasattr(c, "values")] == places
    assert texts(restored(copied({"other": jnp.ones(2)}, copies))) == texts({"other": jnp.ones(2)})


def test_a_state_goes_back_to_its_last_commit_although_arrays_are_donated():
    start = tree(hvd.rank())
    wanted = texts(start)
    state = hvd.elastic.JaxState(**start, epoch=3, losses=[1.0])
    step = jax.jit(lambda w: w + 1, donate_argnums=0)
    for _ in range(2):
        state.params["w"] = step(state.params["w"])
        state.epoch = 9
        state.losses.append(2.0)
        state.restore()
        assert texts({name: getattr(state, name) for name in start}) == wanted
        assert (state.epoch, state.losses) == (3, [1.0])
    state.params = {**state.params, "w": step(state.params["w"])}
    state.epoch = 4
    kept = np.asarray(state.params["w"]).copy()
    state.commit()
    state.params["w"] = step(state.params["w"])
    state.restore()
    np.testing.assert_array_equal(state.params["w"], kept)
    assert state.epoch == 4


def test_a_commit_that_fails_keeps_the_last_one():
    state = hvd.elastic.JaxState(a=jnp.zeros(3), b=jnp.ones(3))
    jax.jit(lambda b: b * 2, donate_argnums=0)(state.b)  # its array is lost
    state.a = state.a + 5
    try:
        state.save()
    except (RuntimeError, ValueError) as error:
        assert "deleted" in str(error) or "donated" in str(error), error
    else:
        raise AssertionError("an array without values was copied")
    state.restore()
    assert state.a.tolist() == [0, 0, 0] and state.b.tolist() == [1, 1, 1]


def test_a_state_is_that_of_rank_0_after_sync():
    state = hvd.elastic.JaxState(**tree(hvd.rank()), epoch=hvd.rank() + 1)
    state.sync()
    wanted = tree(0)
    assert texts({name: getattr(state, name) for name in wanted}) == texts(wanted) and state.epoch == 1
    state.params = None
    state.restore()
    assert texts(state.params) == texts(wanted["params"])
    state.params = {**state.params, "w": state.params["w"] + hvd.rank()}
    with _elastic_state.syncing(True):  # as after a death: only what differs is sent
        state.sync()
    assert texts({name: getattr(state, name) for name in wanted}) == texts(wanted)


def test_a_new_job_goes_on_from_a_commit_in_a_file():
    folder = hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None, 0, name="folder")
    path = os.path.join(folder, "commit")
    state = hvd.elastic.JaxState(**tree(hvd.rank()), epoch=0)
    assert state.keep_commits(path) is False
    hvd.allreduce(jnp.zeros(1), name="all have looked")  # before rank 0 writes
    state.epoch = 5
    state.commit()
    hvd.allreduce(jnp.zeros(1), name="written")
    state = hvd.elastic.JaxState(**tree(9), epoch=0)
    assert state.keep_commits(path) is True and state.epoch == 5
    wanted = tree(0)
    assert texts({name: getattr(state, name) for name in wanted}) == texts(wanted)
    hvd.allreduce(jnp.zeros(1), name="read")
    if hvd.rank() == 0:
        shutil.rmtree(folder)


def test_trees_that_differ_fail_on_all_ranks():
    state = hvd.elastic.JaxState(params={"w": jnp.zeros(3 + hvd.rank())})
    try:
        state.sync()
    except HorovodInternalError as error:
        assert "params" in str(error), error
    else:
        raise AssertionError("different trees were sent")


def test_run_calls_again_after_an_update_and_a_failure():
    state = hvd.elastic.JaxState(params=jnp.full(3, float(hvd.rank())), step=0)
    calls, resets = [], []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])
    reduced = jax.jit(lambda x: hvd.allreduce(x, hvd.Sum))

    @hvd.elastic.run
    def train(state, more):
        calls.append((state.step, more, state.params.tolist()))
        assert float(reduced(jnp.ones(()))) == hvd.size()
        state.step += 1
        if len(calls) == 1:
            state.commit()
            raise HostsUpdatedInterrupt(skip_sync=True)
        state.params = state.params + 1
        if len(calls) == 2:
            raise HorovodInternalError("raised by the program")  # the step is not committed
        return "value"

    assert train(state, 5) == "value"
    assert calls == [(0, 5, [0.0] * 3), (1, 5, [0.0] * 3), (1, 5, [0.0] * 3)]
    assert resets == [hvd.size()] * 2


def test_run_raises_mistakes_of_the_program_at_once():
    calls = []

    @hvd.elastic.run
    def train(state, compiled):
        calls.append(1)
        function = lambda x: hvd.allreduce(x, name="mismatch")  # noqa: E731
        jax.block_until_ready((jax.jit(function) if compiled else function)(jnp.zeros(2 + hvd.rank())))

    for compiled, kinds in ((False, OperationFailedError), (True, (jax.errors.JaxRuntimeError, ValueError))):
        try:
            train(hvd.elastic.JaxState(step=0), compiled)
        except kinds as error:
            assert "mismatch" in str(error), error
        else:
            raise AssertionError("the ranks' shapes differ")
    assert calls == [1, 1]


class Loader:
    """Has a state, as data loaders have."""

    def __init__(self):
        self.place = 0

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


class Reader:
    """Has no state of its own, and refers to a value that has one."""

    def __init__(self, loader):
        self.loader, self.seen = loader, []


def test_values_with_a_state_stay_the_same_objects():
    loader = Loader()
    state = hvd.elastic.JaxState(params=jnp.ones(2), loader=loader, reader=Reader(loader), step=0)
    loader.place = 5
    state.reader.seen.append(1)
    state.restore()
    assert state.loader is state.reader.loader is loader and loader.place == 0 and state.reader.seen == []
    loader.place = 3 + hvd.rank()
    state.sync()
    assert state.loader is state.reader.loader is loader and loader.place == 3
    loader.place = 9
    state.restore()
    assert loader.place == 3
    expect(
        TypeError,
        lambda: hvd.elastic.JaxState(batches=iter(x for x in "ab")),
        "value 'batches' of the state cannot",
    )
