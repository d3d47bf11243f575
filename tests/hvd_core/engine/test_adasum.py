"""Adasum against its definition, computed here in float64 and by recursion, and against its own properties.

The ranks are threads of a C++ program, with real communicators of the shm backend (native/adasum_test.cc).
"""

import itertools
import os
import subprocess

import numpy as np
import pytest

import hvd_core as hvd
import native_program
from adasum_reference import tree
from harness.rank import expect

# Bytes of all ranks together up to which each rank gathers all data and computes alone.
HERE = 0  # never
ALONE = 1 << 40  # always
BFLOAT16 = "bfloat16"
NUMBERS = {"float16": 6, "float32": 7, "float64": 8, BFLOAT16: 10, "int32": 4}
# Relative error of one rounding.
UNIT = {"float16": 2.0**-11, BFLOAT16: 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
SIZES = (1, 2, 3, 4, 5, 8)


@pytest.fixture(scope="module")
def program():
    return native_program.build("adasum_test")


def to_bits(values, dtype):
    """What a rank's file holds; bfloat16 by its upper half, rounded to nearest even."""
    if dtype != BFLOAT16:
        return values.astype(dtype).tobytes()
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()


def from_bits(data, dtype):
    if dtype != BFLOAT16:
        return np.frombuffer(data, dtype).astype(np.float64)
    return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def case(inputs, dtype, counts=None, pre=1.0, post=1.0, local=HERE, how="apart"):
    """One float64 vector per rank; counts cut it into tensors."""
    return inputs, dtype, [len(inputs[0])] if counts is None else counts, (pre, post, local, how)


def adasum(program, folder, *cases):
    """For each case the raw results of all its ranks. One start of the program serves all cases."""
    lines = []
    for number, (inputs, dtype, counts, how) in enumerate(cases):
        for rank, values in enumerate(inputs):
            (folder / f"{number}.in.{rank}").write_bytes(to_bits(values, dtype))
        lines.append(" ".join(map(str, (len(inputs), NUMBERS[dtype], *how, *counts))))
    done = start(program, folder, *lines)
    assert done.returncode == 0, done.stdout + done.stderr
    return [
        [(folder / f"{number}.out.{rank}").read_bytes() for rank in range(len(inputs))]
        for number, (inputs, *_) in enumerate(cases)
    ]


def start(program, folder, *lines):
    words = [program, native_program.shm_library(), folder]
    env = {**os.environ, **native_program.PATIENT}
    return subprocess.run(words, input="\n".join(lines), env=env, capture_output=True, text=True, timeout=60)


def expected(inputs, dtype, counts, pre=1.0, post=1.0):
    rounded = [from_bits(to_bits(v, dtype), dtype) for v in inputs]
    ends = np.cumsum([0, *counts])
    parts = [tree([pre * v[lo:hi] for v in rounded]) for lo, hi in itertools.pairwise(ends)]
    return post * np.concatenate(parts)


def check(results, inputs, dtype, counts, pre=1.0, post=1.0):
    assert all(r == results[0] for r in results), "the ranks have different bits"
    want = expected(inputs, dtype, counts, pre, post)
    got = from_bits(results[0], dtype)
    assert got.shape == want.shape
    # One rounding per combination and factor, each of a number no larger than the inputs together.
    roundings = 2 * (len(inputs).bit_length() + 2)
    scale = abs(pre * post) * np.sum([np.abs(v) for v in inputs], axis=0) + np.abs(want)
    smallest = 2.0**-24 if dtype == "float16" else 0.0
    assert (np.abs(got - want) <= roundings * (UNIT[dtype] * scale + smallest)).all()


def random_inputs(ranks, total, seed):
    """Vectors with much in common and much that is each rank's own."""
    rng = np.random.default_rng(seed)
    common = rng.standard_normal(total)
    return [common * rng.uniform(-1, 2) + rng.standard_normal(total) for _ in range(ranks)]


@pytest.mark.parametrize("ranks", SIZES)
def test_matches_the_definition(program, tmp_path, ranks):
    counts = [1, 70, 0, 5, 2000, 13, 0]
    inputs = random_inputs(ranks, sum(counts), ranks)
    dtypes = ["float32", "float64", "float16", BFLOAT16]
    results = adasum(program, tmp_path, *(case(inputs, dtype, counts) for dtype in dtypes))
    for dtype, result in zip(dtypes, results, strict=True):
        check(result, inputs, dtype, counts)


@pytest.mark.parametrize("ranks", SIZES)
@pytest.mark.parametrize("dtype", ["float32", BFLOAT16])
def test_everybody_computing_alone_gives_the_same_bits(program, tmp_path, dtype, ranks):
    cuts = [[1], [3], [7, 1], [100_003], [1] * 200, [0, 0, 9]]
    inputs = [random_inputs(ranks, sum(counts), 7) for counts in cuts]
    spread, alone = (
        adasum(
            program, tmp_path, *(case(i, dtype, c, local=local) for i, c in zip(inputs, cuts, strict=True))
        )
        for local in (HERE, ALONE)
    )
    for result, other, values, counts in zip(spread, alone, inputs, cuts, strict=True):
        check(result, values, dtype, counts)
        assert result == other, counts


@pytest.mark.parametrize("local", [HERE, ALONE])
@pytest.mark.parametrize("ranks", [1, 3, 4])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_factors_and_in_place(program, tmp_path, ranks, dtype, local):
    counts = [300, 41]
    inputs = random_inputs(ranks, sum(counts), 3)
    apart, inplace, plain, zeros = adasum(
        program,
        tmp_path,
        case(inputs, dtype, counts, 0.5, 3.0, local),
        case(inputs, dtype, counts, 0.5, 3.0, local, how="inplace"),
        case(inputs, dtype, counts, local=local),
        case(inputs, dtype, counts, 0.0, 0.0, local),
    )
    check(apart, inputs, dtype, counts, 0.5, 3.0)
    assert inplace == apart
    assert zeros == plain, "a factor of 0 means 1"


def test_orthogonal_gradients_are_added(program, tmp_path):
    of_all = [
        [np.where(np.arange(64) % ranks == r, r + 1.0, 0.0) for r in range(ranks)]
        for ranks in (2, 3, 4, 5, 8)
    ]
    for inputs, results in zip(of_all, adasum(program, tmp_path, *(case(i, "float32") for i in of_all))):
        for result in results:
            assert (from_bits(result, "float32") == np.sum(inputs, axis=0)).all(), len(inputs)


def test_equal_gradients_are_averaged(program, tmp_path):
    one = np.random.default_rng(1).integers(-50, 50, 1000).astype(float)
    for results in adasum(program, tmp_path, *(case([one] * ranks, "float32") for ranks in (2, 4, 8))):
        for result in results:
            assert (from_bits(result, "float32") == one).all(), len(results)


def test_parallel_gradients_of_any_length_are_averaged(program, tmp_path):
    one = np.random.default_rng(2).standard_normal(512)
    [results] = adasum(program, tmp_path, case([one, 3.0 * one], "float64"))
    assert np.allclose(from_bits(results[0], "float64"), 2.0 * one, rtol=1e-14)


@pytest.mark.parametrize("giver", [0, 1, -1])
@pytest.mark.parametrize("local", [HERE, ALONE])
def test_zeros_change_nothing(program, tmp_path, giver, local):
    """What a rank that has joined gives."""
    only = np.random.default_rng(5).standard_normal(333)
    cases = []
    for ranks in (2, 3, 5, 8):
        inputs = [np.zeros(333)] * ranks
        inputs[giver] = only
        cases.append(case(inputs, "float32", [300, 33], local=local))
    for results in adasum(program, tmp_path, *cases):
        for result in results:
            assert result == to_bits(only, "float32"), len(results)


def test_each_tensor_has_its_own_products(program, tmp_path):
    """Parallel in one tensor, orthogonal in the other: a common product would do neither."""
    a = np.concatenate([np.ones(100), np.tile([1.0, 0.0], 50)])
    b = np.concatenate([np.ones(100), np.tile([0.0, 1.0], 50)])
    [results] = adasum(program, tmp_path, case([a, b], "float32", [100, 100]))
    assert (from_bits(results[0], "float32") == 1.0).all()


def test_norms_too_small_to_divide_by(program, tmp_path):
    tiny = np.full(4, 1e-80)
    [results] = adasum(program, tmp_path, case([tiny, tiny], "float64"))
    assert (from_bits(results[0], "float64") == 2e-80).all(), "the sum, as if each were nothing"


def test_large_half_precision_products_do_not_overflow(program, tmp_path):
    big = np.full(100_000, 1000.0)
    dtypes = ("float16", BFLOAT16)
    results = adasum(program, tmp_path, *(case([big, big], dtype) for dtype in dtypes))
    assert [result[0] for result in results] == [to_bits(big, dtype) for dtype in dtypes]


@pytest.mark.parametrize("local", [HERE, ALONE])
def test_not_a_number_stays_in_its_tensor(program, tmp_path, local):
    a, b = np.ones(20), np.ones(20)
    b[3] = np.nan
    [results] = adasum(program, tmp_path, case([a, b], "float32", [10, 10], local=local))
    got = from_bits(results[0], "float32")
    assert np.isnan(got[:10]).all() and (got[10:] == 1.0).all()


def test_nothing_at_all(program, tmp_path):
    assert adasum(program, tmp_path, case([np.zeros(0)] * 3, "float32", [0, 0])) == [[b""] * 3]


def test_integers_are_refused(program, tmp_path):
    (tmp_path / "0.in.0").write_bytes(bytes(8))
    done = start(program, tmp_path, f"1 {NUMBERS['int32']} 1 1 0 apart 2")
    assert done.returncode == 1
    assert done.stdout.startswith("Adasum of int32 is not supported: it works on float16, bfloat16, float32")


def vectors(dtype, seed, n, ranks):
    rng = np.random.default_rng(seed)
    common = rng.standard_normal(n)
    return [(common * rng.uniform(-1, 2) + rng.standard_normal(n)).astype(dtype) for _ in range(ranks)]


def wanted(all_):
    return tree([a.astype(np.float64) for a in all_])


def close(got, want, dtype, tolerance):
    assert got.dtype == dtype
    assert np.abs(got - want).max(initial=0) <= tolerance * np.abs(want).max(initial=1), (got, want)


@pytest.mark.ranks(1, 2, 3, 4)
def test_through_the_engine():
    """Batches and groups: tensors of one batch keep their own products."""
    rank, size = hvd.rank(), hvd.size()
    sizes = [1, 10, 0, 1000, 77_777]
    for dtype, tolerance in (("float32", 1e-5), ("float64", 1e-13), ("float16", 2e-2)):
        inputs = [vectors(dtype, i, n, size) for i, n in enumerate(sizes)]
        results = [wanted(all_) for all_ in inputs]
        for factor in (
            1,
            2,
            4,
        ):  # other values in every step; powers of two change no bits of a result but its exponent
            mine = [all_[rank] * np.dtype(dtype).type(factor) for all_ in inputs]
            handles = [hvd.allreduce_async(a, name=f"{dtype}.{i}", op=hvd.Adasum) for i, a in enumerate(mine)]
            for want, handle in zip(results, handles):
                close(hvd.synchronize(handle), want * factor, dtype, tolerance)
            for want, got in zip(results, hvd.grouped_allreduce(mine, op=hvd.Adasum)):
                close(got, want * factor, dtype, tolerance)
    some = vectors("float32", 99, 5000, size)
    got = hvd.allreduce(some[rank], op=hvd.Adasum)
    copies = hvd.allgather(got.reshape(1, -1))
    assert all((c == copies[0]).all() for c in copies), "the ranks have different bits"
    scaled = hvd.allreduce(some[rank], op=hvd.Adasum, prescale_factor=2.0, postscale_factor=0.25)
    assert np.array_equal(scaled, got * 0.5), "powers of two change no bits"
    expect(ValueError, lambda: hvd.allreduce(np.ones(3, np.int32), op=hvd.Adasum), "floating-point")
    hvd.barrier()


@pytest.mark.ranks(3, env={"HOROVOD_SIMULATED_HOSTS": "0,0,1"})
def test_a_rank_beyond_the_pairs_is_alone_on_its_host():
    """It sends its whole vector to rank 0 and receives nothing, by an alltoall of two levels."""
    inputs = vectors("float32", 7, 77_777, hvd.size())
    close(hvd.allreduce(inputs[hvd.rank()], op=hvd.Adasum), wanted(inputs), "float32", 1e-5)


@pytest.mark.ranks(3)
def test_a_rank_that_has_joined_gives_zeros():
    rank = hvd.rank()
    some = vectors("float32", 5, 400, hvd.size())
    if rank == 1:
        hvd.join()
    else:
        some[1] = np.zeros(400, np.float32)
        close(hvd.allreduce(some[rank], op=hvd.Adasum), wanted(some), "float32", 1e-5)
        hvd.join()
