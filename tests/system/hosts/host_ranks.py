"""The programs of these tests' ranks on several hosts: one function each, named on the command line, with its arguments
behind."""

import os
import signal
import sys
import time
import zlib

import numpy as np

import hvd_core as hvd


def collectives():
    """Every operation, on whole numbers, so that the order of the additions does not matter."""
    hvd.init(process_sets="dynamic")
    rank, size = hvd.rank(), hvd.size()
    for dtype in (np.float32, np.float64, np.int32, np.float16):
        for count in (1, 3, 1000, 70_001):
            _each_operation(dtype, count)
    average = hvd.allreduce(np.full(5, float(rank)))
    assert average.tolist() == [(size - 1) / 2] * 5
    # The same bits everywhere, although sums of these depend on the order.
    chance = np.random.default_rng(rank).standard_normal(100_003).astype(np.float32)
    total = hvd.allreduce(chance, op=hvd.Sum, name="noise")
    totals = hvd.allgather(total.reshape(1, -1), name="totals")
    assert all(np.array_equal(row, total) for row in totals)
    # Sets of ranks: first and last, which are on different hosts; and all but the first.
    ends, tail = hvd.add_process_set([0, size - 1]), hvd.add_process_set(range(1, size))
    for chosen, ranks in ((ends, [0, size - 1]), (tail, list(range(1, size)))):
        if rank in ranks:
            got = hvd.allreduce(np.full(1000, 2.0**rank), op=hvd.Sum, name="in a set", process_set=chosen)
            assert got.tolist() == [sum(2.0**one for one in ranks)] * 1000
    hvd.barrier()
    print("right", hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size())


def _each_operation(dtype, count):
    rank, size = hvd.rank(), hvd.size()
    mine = [(np.arange(count) % 50 + one).astype(dtype) for one in range(size)]
    where = f"{np.dtype(dtype).name} x {count}"
    total = hvd.allreduce(mine[rank], op=hvd.Sum, name="sum " + where)
    assert np.array_equal(total, np.sum(mine, axis=0, dtype=dtype)), where
    most = hvd.allreduce(mine[rank], op=hvd.Max, name="max " + where)
    assert np.array_equal(most, mine[-1]), where
    for root in (0, size - 1):
        got = hvd.broadcast(mine[rank], root, name=f"from {root} " + where)
        assert np.array_equal(got, mine[root]), where
    parts = [np.full((one + 1, count % 7 + 1), one, dtype) for one in range(size)]
    got = hvd.allgather(parts[rank], name="gather " + where)
    assert np.array_equal(got, np.concatenate(parts)), where
    # One row to rank 0, two to rank 1, ...; rows carry where they come from and where they go.
    splits = list(range(1, size + 1))
    rows = [
        [np.full((count % 5 + 1,), 10 * one + to, dtype) for to in range(size) for _ in range(to + 1)]
        for one in range(size)
    ]
    got, received = hvd.alltoall(np.stack(rows[rank]), splits, name="all " + where)
    wanted = [row for one in range(size) for row in rows[one][sum(splits[:rank]) : sum(splits[: rank + 1])]]
    assert np.array_equal(got, np.stack(wanted)) and list(received) == [rank + 1] * size, where
    got = hvd.reducescatter(mine[rank], op=hvd.Sum, name="scatter " + where)
    shares = [count // size + (one < count % size) for one in range(size)]
    start = sum(shares[:rank])
    assert np.array_equal(got, np.sum(mine, axis=0, dtype=dtype)[start : start + shares[rank]]), where


def reduce_until_something_happens():
    """Says what it was and how long after the last success."""
    hvd.init()
    # The first to end leaves the others a second before their SIGTERM; on a busy machine they need more to say what
    # they saw.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    data, steps = np.full(50_000, hvd.rank(), np.float32), 0
    try:
        while True:
            hvd.allreduce(data, name="gradient")
            last, steps = time.monotonic(), steps + 1
            if steps == 10:
                _tell(f"ready.{hvd.rank()}", os.getpid())
    except hvd.HorovodInternalError as error:
        print(f"after {time.monotonic() - last:.2f} s: {error}", flush=True)
        sys.exit(5)


def _tell(name, text):
    with open(name, "w") as file:
        file.write(f"{text}\n")


def over_gloo():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for count in (1, 1000, 70_001):
        for dtype in (np.float32, np.int64, np.float16):
            mine = [(np.arange(count) % 50 + one).astype(dtype) for one in range(size)]
            where = f"{np.dtype(dtype).name} x {count}"
            total = hvd.allreduce(mine[rank], op=hvd.Sum, name="sum " + where)
            assert np.array_equal(total, sum(mine)), where
            for root in range(size):
                got = hvd.broadcast(mine[rank], root, name=f"from {root} " + where)
                assert np.array_equal(got, mine[root]), where
            parts = [np.full((one + 1, 3), one, dtype) for one in range(size)]
            got = hvd.allgather(parts[rank], name="gather " + where)
            assert np.array_equal(got, np.concatenate(parts)), where
            share = hvd.reducescatter(mine[rank], op=hvd.Sum, name="scatter " + where)
            assert share.size in (count // size, count // size + 1), where
    hvd.barrier()
    if rank == 0:
        print(hvd.backend_report())
    hvd.shutdown()
    print("right")


def repeat_an_allreduce(count, rounds):
    """Of `count` float32, for the bytes to be counted."""
    count = int(count)
    hvd.init()
    x = np.random.default_rng(hvd.rank()).standard_normal(count).astype(np.float32)
    for _ in range(int(rounds)):
        y = hvd.allreduce(x, name="x", op=hvd.Sum)
    sums = hvd.allgather(np.array([zlib.crc32(y.tobytes())], dtype=np.int64))
    assert (sums == sums[0]).all(), sums
    # All have the same bits; one compares them with the sum.
    if hvd.rank() == 0:
        each = (np.random.default_rng(rank).standard_normal(count) for rank in range(hvd.size()))
        assert np.allclose(
            y, sum(x.astype(np.float32).astype(np.float64) for x in each), rtol=1e-5, atol=1e-5
        )
    hvd.barrier()


def send_a_pattern(text):
    """Every rank sends it to all others. Over and over, because a program that reads along may miss packets."""
    hvd.init()
    for root in range(hvd.size()):
        for count in (3, 1000, 50_000):
            mine = np.frombuffer(text.encode() * count, np.uint8)
            data = mine if hvd.rank() == root else np.zeros_like(mine)
            assert np.array_equal(hvd.broadcast(data, root, name=f"named {text} {count}"), mine)
    hvd.barrier()
    print("right", flush=True)


def wait_for_rank_0():
    """Rank 0 comes to the operation when the file "asked" is there."""
    hvd.init()
    _tell(f"ready.{hvd.rank()}", os.getpid())
    if hvd.rank() == 0:
        _until_asked()
    hvd.allreduce(np.ones(3), name="loss")
    print("right", flush=True)


def late_steps_and_a_stall():
    """Steps with rank 2 behind the others until the file "stall" is there. Then rank 0 alone comes to an operation, until
    the file "end" is there."""
    hvd.init()
    stop = np.zeros(1)
    while stop[0] == 0:
        time.sleep(0.06 if hvd.rank() == 2 else 0.02)
        hvd.allreduce(np.ones(1000), name="late")
        stop = hvd.allreduce(np.array([float(os.path.exists("stall"))]), name="stop")
    while hvd.rank() != 0 and not os.path.exists("end"):
        time.sleep(0.05)
    hvd.allreduce(np.ones(3), name="stalled")


def _until_asked():
    while not os.path.exists("asked"):
        time.sleep(0.05)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
