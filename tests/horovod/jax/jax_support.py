"""Where the tests of horovod.jax run, data and comparisons: values depend on rank and index, and are compared with NumPy
in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import horovod.jax as hvd
from harness.frameworks import environment_of

on_jax = functools.partial(pytest.mark.ranks, framework="jax", init_options={"process_sets": "dynamic"})
_DEVICES = {"XLA_FLAGS": environment_of("jax")["XLA_FLAGS"] + " --xla_force_host_platform_device_count=2"}
on_two_devices = functools.partial(on_jax, id="two-devices", process_env=_DEVICES)

REDUCIBLE = ["int8", "uint8", "int16", "int32", "float16", "bfloat16", "float32"]
WIDE = ["int64", "float64"]  # JAX has them with jax_enable_x64 only
MOVABLE = [*REDUCIBLE, "uint16", "uint32", "bool"]
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-6, "float64": 1e-14}
COMBINE = {
    hvd.Sum: lambda parts: parts.sum(0),
    hvd.Average: lambda parts: parts.sum(0) / len(parts),
    hvd.Min: lambda parts: parts.min(0),
    hvd.Max: lambda parts: parts.max(0),
    hvd.Product: lambda parts: parts.prod(0),
}
# The ways in which a function of arrays can run.
WAYS = {"eager": lambda f: f, "jit": jax.jit}


def values_of(rank, shape, seed=0):
    """What a rank contributes: small integers, so that sums of a few ranks are exact in every type."""
    count = int(np.prod(shape))
    return ((np.arange(count) * 7 + rank * 3 + seed) % 5 + 1).reshape(shape).astype(np.float64)


def mine(shape, dtype="float32", seed=0):
    return jnp.asarray(values_of(hvd.rank(), shape, seed).astype(jnp.dtype(dtype)))


def all_of(shape, dtype="float32", seed=0, ranks=None):
    parts = [values_of(r, shape, seed) for r in ranks or range(hvd.size())]
    return np.stack([part.astype(jnp.dtype(dtype)).astype(np.float64) for part in parts])


def same(found, wanted, dtype="float32"):
    wanted = np.asarray(wanted, np.float64)
    assert found.dtype.name == dtype and found.shape == wanted.shape, (found.dtype, found.shape, wanted.shape)
    if dtype not in TOLERANCE:
        wanted = np.trunc(wanted)
    scale = max(1.0, float(np.abs(wanted).max(initial=0)))
    np.testing.assert_allclose(
        np.asarray(found, np.float64), wanted, rtol=0, atol=TOLERANCE.get(dtype, 0) * scale
    )
