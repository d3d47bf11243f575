"""Operations that the engine composes where a backend lacks something: with backends that lack nearly everything.

native/emulated_test.cc compares every collective, type and reduction, bit for bit, with the results of the shm
backend's own collectives; ranks are threads there. native/staged_test.cc does it with memory that only a device can read
(tests/backends/host/fake_device). tests/backends/host/minimal is a backend of its own, between processes too.
"""

import os
import subprocess

import numpy as np
import pytest

import hvd_core as hvd
import native_program
from harness import run_on_ranks
from harness.rank import expect

BACKENDS = native_program.ROOT / "tests/backends/host"
MINIMAL, FAKE_SYNC = BACKENDS / "minimal" / "minimal.cc", BACKENDS / "fake_sync" / "fake_sync.cc"
SANITIZERS = ["address,undefined", "thread"]


def sanitized(kind):
    return ["-O1", "-g1", f"-fsanitize={kind}", "-fno-sanitize-recover=all"]


def check(command, env=None):
    done = subprocess.run(
        [str(c) for c in command],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, **native_program.PATIENT, **(env or {})},
    )
    assert done.returncode == 0 and done.stdout.endswith("all good\n"), (
        done.stdout[-4000:] + done.stderr[-4000:]
    )


def run_emulated(flags=None, seed=1, most_ranks=4):
    program = native_program.build("emulated_test", flags)
    check([program, native_program.shm_library(), native_program.backend(MINIMAL, flags), seed, most_ranks])


def run_staged(flags=None):
    program = native_program.build("staged_test", flags)
    libraries = [native_program.backend(source, flags) for source in (MINIMAL, FAKE_SYNC)]
    command = [program, native_program.shm_library(), *libraries]
    check(command, {"HOROVOD_BACKEND_FAKE_SYNC_DELAY_US": "100"})
    # What a failed device might still touch is not given back.
    check(
        [*command, "failing"], {"HOROVOD_BACKEND_FAKE_SYNC_FAIL_COPY": "5", "ASAN_OPTIONS": "detect_leaks=0"}
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("most_ranks", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_composed_collectives_are_the_native_ones_bit_for_bit(most_ranks):
    run_emulated(most_ranks=most_ranks)


@pytest.mark.timeout(300)
def test_memory_that_the_host_cannot_touch_is_staged():
    run_staged()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", SANITIZERS)
def test_composed_under_sanitizer(kind):
    run_emulated(sanitized(kind), seed=2)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", SANITIZERS)
def test_staged_under_sanitizer(kind):
    run_staged(sanitized(kind))


DTYPES = (
    *("uint8", "int8", "uint16", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "bool", "uint32"),
)
PARTS = {"Sum": np.add, "Product": np.multiply, "Min": np.minimum, "Max": np.maximum}


def data(dtype, n, r):
    x = np.arange(n) * 7 % 11 + r + 1
    return x % 2 == 0 if dtype == "bool" else x.astype(dtype)


def reduced(dtype, n, name, size):
    all_of_them = [data(dtype, n, r) for r in range(size)]
    if name == "Average":
        total = sum(x.astype(np.float64) for x in all_of_them) / size
        return np.trunc(total).astype(dtype) if np.dtype(dtype).kind in "iu" else total.astype(dtype)
    result = all_of_them[0]
    for x in all_of_them[1:]:
        result = PARTS[name](result, x)
    return result


def same(got, want, *what):
    assert got.dtype == want.dtype and got.shape == want.shape, (what, got.dtype, got.shape, want.shape)
    assert np.allclose(got, want, rtol=2e-3 if got.dtype == np.float16 else 1e-6), (what, got, want)


def _everything():
    rank, size = hvd.rank(), hvd.size()
    for dtype in DTYPES:
        for n in (1, 17, 3000):
            for name in ("Sum", "Product", "Min", "Max", "Average"):
                if name == "Average" and dtype == "bool":
                    continue
                op = getattr(hvd, name)
                x, want = data(dtype, n, rank), reduced(dtype, n, name, size)
                same(hvd.allreduce(x, op=op), want, "allreduce", dtype, n, name)
                if name not in ("Sum", "Average") or dtype == "bool":
                    continue
                rows = np.repeat(x[:, None], size, 1).T.copy()
                share = hvd.reducescatter(rows, op=op)
                same(share, want[None], "reducescatter", dtype, n, name)
            for root in range(size):
                same(hvd.broadcast(data(dtype, n, rank), root), data(dtype, n, root), "broadcast", dtype, n)
            mine = data(dtype, n + rank, rank)
            want = np.concatenate([data(dtype, n + r, r) for r in range(size)])
            same(hvd.allgather(mine), want, "allgather", dtype, n)
            splits = [(rank + r) % 3 + n // size for r in range(size)]
            sent = data(dtype, sum(splits), rank)
            got, received = hvd.alltoall(sent, splits)
            want = []
            for r in range(size):
                theirs = [(r + k) % 3 + n // size for k in range(size)]
                want.append(data(dtype, sum(theirs), r)[sum(theirs[:rank]) : sum(theirs[: rank + 1])])
            assert list(received) == [len(w) for w in want]
            same(got, np.concatenate(want), "alltoall", dtype, n)
        xs = [data(dtype, n, rank) for n in (3, 0, 40, 1)]
        for got, n in zip(hvd.grouped_allreduce(xs, op=hvd.Max), (3, 0, 40, 1)):
            same(got, reduced(dtype, n, "Max", size), "grouped", dtype, n)
    hvd.barrier()


def on_minimal(ranks, function, **env):
    env = {
        "HOROVOD_BACKEND": "minimal",
        "HOROVOD_BACKEND_PATH_MINIMAL": str(native_program.backend(MINIMAL)),
        **env,
    }
    return run_on_ranks(ranks, function, env=env, timeout=200)


@pytest.mark.timeout(250)
@pytest.mark.parametrize(
    "ranks, limits",
    [
        (1, {}),
        (2, {}),
        (3, {"HOROVOD_BACKEND_MINIMAL_MAX_COUNT": "500", "HOROVOD_BACKEND_MINIMAL_ALIGNMENT": "64"}),
    ],
)
def test_a_minimal_backend_serves_everything_between_processes(ranks, limits):
    outputs = on_minimal(ranks, _everything, **limits).outputs
    output = "".join(outputs)
    assert output.count("allreduce of int64 on cpu: backend 'minimal' has no int64; EMULATED by") == 1
    said = [line.partition("horovod WARNING: ")[2] for line in output.splitlines() if "(said once)" in line]
    assert len(said) == len(set(said)) > 20
    assert not any("horovod WARNING" in text for text in outputs[1:]), "the first rank says it for all"


def _without_emulation():
    size = hvd.size()
    assert hvd.allreduce(np.ones(3, np.float32), op=hvd.Sum).tolist() == [size] * 3
    expect(
        hvd.HorovodInternalError,
        lambda: hvd.allreduce(np.ones(3, np.int64), op=hvd.Sum),
        "allreduce of int64 on cpu is not supported by backend 'minimal' and emulation is off",
        "HOROVOD_EMULATION=1",
    )
    # Only that call fails.
    assert hvd.allreduce(np.ones(3, np.float32), op=hvd.Sum).tolist() == [size] * 3


def test_without_emulation_the_message_says_what_to_do():
    on_minimal(2, _without_emulation, HOROVOD_EMULATION="0")
