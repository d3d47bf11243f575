"""Data and comparisons for the checks of horovod.jax: values depend on rank and index, and are compared with NumPy in
float64."""

import jax
import jax.numpy as jnp
import numpy as np

import horovod.jax as hvd

ME, SIZE = hvd.rank(), hvd.size()
RANKS = range(SIZE)
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
    return jnp.asarray(values_of(ME, shape, seed).astype(jnp.dtype(dtype)))


def all_of(shape, dtype="float32", seed=0, ranks=RANKS):
    return np.stack([values_of(r, shape, seed).astype(jnp.dtype(dtype)).astype(np.float64) for r in ranks])


def same(found, wanted, dtype="float32"):
    wanted = np.asarray(wanted, np.float64)
    assert found.dtype.name == dtype and found.shape == wanted.shape, (found.dtype, found.shape, wanted.shape)
    if dtype not in TOLERANCE:
        wanted = np.trunc(wanted)
    scale = max(1.0, float(np.abs(wanted).max(initial=0)))
    np.testing.assert_allclose(
        np.asarray(found, np.float64), wanted, rtol=0, atol=TOLERANCE.get(dtype, 0) * scale
    )
