"""Data and comparisons for the checks: values depend on rank and index, and are compared with NumPy in
float64."""

import contextlib

import numpy as np
import pytest
import torch

import horovod.torch as hvd

# Tensors reach the engine without DLPack's C exchange API; horovod.torch reads it when it is imported.
NO_DLPACK_API = {"HOROVOD_TORCH_NO_DLPACK_API": "1"}
# One process without an engine.
in_one_process = pytest.mark.ranks(1, framework="torch", init=None)
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
REDUCIBLE = INTEGERS + FLOATS
MOVABLE = REDUCIBLE + [torch.bool]
SHAPES = [(), (0,), (1,), (17,), (3, 0, 2), (5, 7), (2, 3, 4, 5)]

# Relative to the largest value: one rounding of the result, and one of each factor.
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-6, torch.float64: 1e-14}


def data_of(rank, shape, dtype, seed=0):
    """The tensor that `rank` contributes. Small integers, so that sums and products of a few ranks are
    exact."""
    count = int(np.prod(shape))
    values = (np.arange(count, dtype=np.int64) * 7 + rank * 3 + seed) % 5 + 1
    if dtype is torch.bool:
        return torch.from_numpy((values % 2).astype(bool)).reshape(shape)
    if dtype.is_floating_point:
        values = values - 2.5
    return torch.from_numpy(np.asarray(values, dtype=np.float64)).to(dtype).reshape(shape)


def as_float64(tensor):
    """The values of a tensor as a NumPy array of float64."""
    return tensor.detach().to(torch.float64).numpy()


def reduced(op, ranks, shape, dtype, prescale=1.0, postscale=1.0, seed=0):
    """The right result of an allreduce, in float64; integers truncate after each factor and after the average.

    An average with factors is a sum whose second factor is divided by the number of ranks.
    """
    if op == hvd.Average and (prescale, postscale) != (1.0, 1.0):
        op, postscale = hvd.Sum, postscale / len(ranks)
    parts = np.stack([as_float64(data_of(r, shape, dtype, seed)) for r in ranks])
    keep = np.trunc if not dtype.is_floating_point else (lambda x: x)
    parts = keep(parts * prescale)
    if op == hvd.Sum:
        result = parts.sum(axis=0)
    elif op == hvd.Average:
        result = keep(parts.sum(axis=0) / len(ranks))
    elif op == hvd.Min:
        result = parts.min(axis=0)
    elif op == hvd.Max:
        result = parts.max(axis=0)
    else:
        result = parts.prod(axis=0)
    return keep(result * postscale)


def expect(tensor, wanted, dtype, what=""):
    """Compare a tensor with wanted values in float64: exactly for integers and bool, closely for floats."""
    wanted = np.asarray(wanted, dtype=np.float64)
    assert tensor.dtype == dtype, f"{what}: dtype {tensor.dtype}, wanted {dtype}"
    assert tuple(tensor.shape) == wanted.shape, f"{what}: shape {tuple(tensor.shape)}, wanted {wanted.shape}"
    found = as_float64(tensor)
    if dtype in TOLERANCE:
        scale = max(1.0, float(np.abs(wanted).max(initial=0.0)))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE[dtype] * scale, err_msg=what)
    else:
        np.testing.assert_array_equal(found, wanted, err_msg=what)


@contextlib.contextmanager
def raises(kind, *fragments):
    """The block raises exactly an exception of this class whose text contains all fragments."""
    try:
        yield
    except kind as error:
        for fragment in fragments:
            assert fragment in str(error), f"{fragment!r} is not in {str(error)!r}"
    else:
        raise AssertionError(f"no {kind.__name__} was raised")


def same_everywhere(tensor, name):
    """All ranks hold bit-identical values."""
    flat = tensor.detach().contiguous().reshape(1, -1)
    rows = hvd.allgather(flat, name=name)
    assert all(torch.equal(rows[0], row) for row in rows), f"{name}: ranks differ: {rows}"
