"""Backends written in Python through their C table, with no engine in between: what they say, and that they compute.

test_python_backend_failure.py lets them fail, test_python_engine.py runs them under the engine.
"""

import ctypes

import numpy as np
import pytest

from hvd_core.backends import PythonBackend, register_python_backend
from hvd_core.backends.errors import BackendCallError
from python_ranks import abi, failure, on_ranks, reference, registry_as_it_was  # noqa: F401
from star_backend import MinimalBackend, StarBackend
from table_driver import Backend

BFLOAT16 = 10

# ---------------------------------------------------------------------------------------------------- what it says


def asked(backend, coll, dtype, op=abi.SUM):
    args, caps = abi.new(abi.CollArgs), abi.new(abi.CollCaps)
    args.coll, args.dtype, args.op, args.n_bufs = coll, dtype, op, 1
    backend.call(backend.comm_api, "query", None, ctypes.byref(args), ctypes.byref(caps))
    return bool(caps.support), caps.max_count


def test_missing_methods_types_and_reductions_are_unserved(tmp_path):
    minimal = Backend(register_python_backend(MinimalBackend).path, tmp_path)
    f32, i32 = abi.DTYPES["float32"], abi.DTYPES["int32"]
    for coll, dtype, op, served in (
        (abi.ALLREDUCE, f32, abi.SUM, True),
        (abi.ALLREDUCE, f32, abi.MAX, False),
        (abi.ALLREDUCE, i32, abi.SUM, False),
        (abi.BROADCAST, f32, abi.MAX, True),  # movement does not reduce
        (abi.ALLGATHER, f32, abi.SUM, True),
        (abi.ALLGATHER, i32, abi.SUM, False),
        (abi.ALLTOALL, f32, abi.SUM, False),
        (abi.BARRIER, f32, abi.SUM, False),
        (99, f32, abi.SUM, False),
        (abi.ALLREDUCE, 99, abi.SUM, False),
        (abi.ALLREDUCE, f32, 99, False),
    ):
        assert asked(minimal, coll, dtype, op) == (served, 0), (coll, dtype, op)
    star = Backend(register_python_backend(StarBackend).path, tmp_path)
    assert asked(star, abi.BARRIER, 99, 99)[0], "a barrier has no type and no reduction"
    assert asked(star, abi.BROADCAST, BFLOAT16)[0]
    assert not asked(star, abi.ALLREDUCE, BFLOAT16)[0]
    assert not asked(star, abi.SEND, f32)[0]


def test_what_the_table_says(tmp_path):
    class Declared(PythonBackend):
        name = "declared"
        version = "7.5"
        communicator = StarBackend.communicator
        one_host = True
        max_count = 1000

    declared = Backend(register_python_backend(Declared).path, tmp_path)
    assert (declared.api.name, declared.api.tag, declared.api.version) == (b"declared", b"DECLARED", b"7.5")
    assert declared.comm_api.caps == abi.CAP_REQUEST | abi.CAP_MEM_HOST | abi.CAP_ABORT | abi.CAP_ONE_HOST
    assert asked(declared, abi.BROADCAST, abi.DTYPES["float32"]) == (True, 1000)
    star = Backend(register_python_backend(StarBackend).path, tmp_path)
    assert star.comm_api.caps == abi.CAP_REQUEST | abi.CAP_MEM_HOST | abi.CAP_ABORT | abi.CAP_VECTORED


def test_names_and_classes_that_are_refused():
    again = register_python_backend(StarBackend)
    assert register_python_backend(StarBackend) is again
    assert again.path == f"entry:{again.entry_address:#x}"
    for name in ("", "Star", "a" * 33, "with space"):
        with pytest.raises(ValueError, match="1 to 32 characters"):
            register_python_backend(type("Odd", (PythonBackend,), {"name": name}))
    for name in ("shm", "star"):
        with pytest.raises(ValueError, match=f"'{name}' is taken already"):
            register_python_backend(type("Second", (PythonBackend,), {"name": name}))
    with pytest.raises(ValueError, match="a subclass of PythonBackend"):
        register_python_backend(int)


def test_error_codes_by_name_and_by_number():
    assert BackendCallError("REMOTE", "x").code == abi.REMOTE
    assert BackendCallError(abi.TIMEOUT, "x").name == "TIMEOUT"
    assert BackendCallError(99, "x").name == "INTERNAL"
    with pytest.raises(ValueError):
        BackendCallError("OK", "x")


# ------------------------------------------------------------------------------------------------------ collectives


def reductions(comm, dtype, op, factors):
    given = [reference.sample(dtype, comm.rank, n) for n in (7, 1, 0, 1000)]
    results = [np.empty_like(a) for a in given]
    comm.run(abi.ALLREDUCE, given, results, op=op, pre=factors[0], post=factors[1])
    for i, result in enumerate(results):
        columns = [reference.sample(dtype, r, given[i].size) for r in range(comm.size)]
        reference.check(
            result, dtype, op, columns, f"{dtype} {op}", pre=factors[0] or 1, post=factors[1] or 1
        )
    comm.run(abi.ALLREDUCE, given, given, op=op, pre=factors[0], post=factors[1])
    for mine, result in zip(given, results):
        assert mine.tobytes() == result.tobytes(), "in place"


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("op", sorted(reference.OPS))
@pytest.mark.parametrize("threads", [False, True])
def test_allreduce(dtype, op, threads):
    on_ranks(StarBackend, 3, reductions, dtype, reference.OPS[op], (0.0, 0.0), threads=threads)
    if dtype.startswith("float"):
        on_ranks(StarBackend, 2, reductions, dtype, reference.OPS[op], (0.5, 3.0), threads=threads)


def movement(comm):
    rank, size = comm.rank, comm.size
    # Bits that are no float of NumPy's: moved as they are.
    bits = np.array([rank, 0x7FC1, 0xFF81], np.uint16)
    comm.run(abi.BROADCAST, [bits], [bits], root=size - 1, dtype=BFLOAT16)
    assert bits.tolist() == [size - 1, 0x7FC1, 0xFF81]
    apart = np.zeros(2, np.int64)
    comm.run(abi.BROADCAST, [np.array([5, rank])], [apart], root=0)
    assert apart.tolist() == [5, 0]

    counts = [r % 3 for r in range(size)] + [2] * size
    given = [np.full(rank % 3, rank, np.int32), np.full(2, 10 + rank, np.int32)]
    gathered = [np.full(sum(counts[:size]), -1, np.int32), np.full(2 * size, -1, np.int32)]
    comm.run(abi.ALLGATHER, given, gathered, out_counts=counts, poll=True)
    assert gathered[0].tolist() == [r for r in range(size) for _ in range(r % 3)]
    assert gathered[1].tolist() == [10 + r for r in range(size) for _ in range(2)]
    inplace = np.full(2 * size, -1, np.int32)
    inplace[2 * rank : 2 * rank + 2] = 10 + rank
    comm.run(abi.ALLGATHER, [inplace], [inplace], counts=[2])
    assert (inplace == gathered[1]).all()

    to = [r + 1 for r in range(size)]
    box = np.concatenate([np.full(n, 100 * rank + r) for r, n in enumerate(to)])
    received = np.zeros((rank + 1) * size, box.dtype)
    comm.run(abi.ALLTOALL, [box], [received], in_counts=to, out_counts=[rank + 1] * size)
    assert received.tolist() == [100 * r + rank for r in range(size) for _ in range(rank + 1)]
    even = np.zeros(2 * size, np.int8)
    comm.run(abi.ALLTOALL, [np.arange(2 * size, dtype=np.int8)], [even])
    assert even.tolist() == [2 * rank, 2 * rank + 1] * size

    parts = [r + 1 for r in range(size)]
    mine = np.zeros(rank + 1, np.float32)
    comm.run(abi.REDUCESCATTER, [np.arange(sum(parts), dtype=np.float32)], [mine], out_counts=parts)
    at = sum(parts[:rank])
    assert mine.tolist() == [size * (at + i) for i in range(rank + 1)]
    rooted = np.zeros(3, np.float32)
    comm.run(abi.REDUCE, [np.full(3, rank, np.float32)], [rooted] if rank == 1 else [], op=abi.MAX, root=1)
    assert rooted.tolist() == [size - 1.0 if rank == 1 else 0.0] * 3
    comm.run(abi.BARRIER)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_movement(size):
    on_ranks(StarBackend, size, movement)


def minimal(comm):
    for root in range(comm.size):
        data = np.full(5, comm.rank, np.float32)
        comm.run(abi.BROADCAST, [data], [data], root=root)
        assert (data == root).all()
    total = np.zeros(5, np.float32)
    comm.run(abi.ALLREDUCE, [np.full(5, comm.rank + 1.0, np.float32)], [total])
    assert (total == comm.size * (comm.size + 1) / 2).all()
    error = failure(comm.start, abi.ALLREDUCE, [total], [total], op=abi.AVG)
    assert (error.code, error.flags) == (abi.UNSUPPORTED, 0)
    assert failure(comm.start, abi.ALLREDUCE, [total, total], [total, total]).code == abi.INVALID
    comm.run(abi.ALLREDUCE, [total], [total])  # a refusal harms nothing


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_least_that_a_backend_may_have(size):
    on_ranks(MinimalBackend, size, minimal)
