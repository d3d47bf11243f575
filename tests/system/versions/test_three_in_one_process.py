"""PyTorch, TensorFlow and JAX in one process use one engine in one job."""

import contextlib
import threading
from pathlib import Path

import numpy as np
import pytest

from harness.installed import need

need("torch", "tensorflow", "jax")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import tensorflow as tf  # noqa: E402
import torch  # noqa: E402

import horovod.jax as hvd_jax  # noqa: E402
import horovod.tensorflow as hvd_tf  # noqa: E402
import horovod.torch as hvd_torch  # noqa: E402

# The other tests on TensorFlow run on ranks with TensorFlow alone.
ON = {"framework": "tensorflow", "process_env": {"HVD_TEST_THREE_FRAMEWORKS": "1"}}
pytestmark = [pytest.mark.ranks(2, **ON), pytest.mark.ranks(3, slow=True, **ON)]

ROUNDS = 12
# TensorFlow puts the function's name in front of the names in its graph.
NAME = "graph/sum"


def values(rank, seed):
    """The contribution of `rank`, float32 (33,)."""
    return ((np.arange(33) * 7 + rank * 11 + seed) % 13 - 6).astype(np.float32)


def total(seed):
    return sum(values(rank, seed) for rank in range(hvd_tf.size()))


def same(found, wanted):
    np.testing.assert_array_equal(np.asarray(found, np.float64), wanted)


@tf.function
def graph(x):
    return hvd_tf.allreduce(x, op=hvd_tf.Sum, name="sum")


@jax.jit
def program(x):
    return hvd_jax.allreduce(x, op=hvd_jax.Sum, name=NAME)


def by_torch(x):
    return hvd_torch.allreduce(torch.from_numpy(x), op=hvd_torch.Sum, name=NAME).numpy()


def by_tensorflow(x):
    return hvd_tf.allreduce(tf.constant(x), op=hvd_tf.Sum, name=NAME).numpy()


def by_graph(x):
    return graph(tf.constant(x)).numpy()


def by_jax(x):
    return hvd_jax.allreduce(jnp.asarray(x), op=hvd_jax.Sum, name=NAME)


def by_program(x):
    return program(jnp.asarray(x))


def test_one_job():
    for hvd in (hvd_torch, hvd_jax):
        hvd.init()
        assert (hvd.rank(), hvd.size()) == (hvd_tf.rank(), hvd_tf.size()) and hvd.is_initialized()
    engines = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            engines += (task / "comm").read_text().strip() == "hvd-engine"
    assert engines == 1, f"{engines} engines in this process"


def test_one_operation_of_several_frameworks():
    """Each rank calls the operation by another framework, at once and in compiled programs."""
    ways = [by_torch, by_tensorflow, by_jax, by_graph, by_program]
    for number in range(ROUNDS):
        way = ways[(number + hvd_tf.rank()) % len(ways)]
        same(way(values(hvd_tf.rank(), number)), total(number))


def test_a_thread_for_each_framework():
    """The order of operations differs from rank to rank."""
    errors = []

    def work(hvd, array, name):
        try:
            for number in range(ROUNDS):
                found = hvd.allreduce(array(values(hvd_tf.rank(), number)), op=hvd.Sum, name=name)
                same(np.asarray(found), total(number))
        except BaseException as error:
            errors.append(error)

    kinds = [(hvd_torch, torch.from_numpy), (hvd_tf, tf.constant), (hvd_jax, jnp.asarray)]
    threads = [threading.Thread(target=work, args=(*kind, f"thread.{i}")) for i, kind in enumerate(kinds)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def test_mismatches_name_all():
    """Shapes of different frameworks that do not agree."""
    x = values(hvd_tf.rank(), 0)[: 4 if hvd_tf.rank() == 0 else 5]
    for way in (by_torch, by_graph, by_jax, by_program):
        try:
            way(x)
        except Exception as error:
            assert "float32[4]" in str(error) and "float32[5]" in str(error), error
        else:
            raise AssertionError("unequal shapes were reduced")


def test_one_shutdown_ends_all():
    x = values(hvd_tf.rank(), 0)
    hvd_jax.barrier()
    hvd_jax.shutdown()
    assert not (hvd_tf.is_initialized() or hvd_torch.is_initialized() or hvd_jax.is_initialized())
    for way in (by_torch, by_tensorflow, by_jax, by_program):
        try:
            way(x)
        except Exception as error:
            assert "initialized" in str(error), error
        else:
            raise AssertionError("an operation after shutdown() has not failed")
