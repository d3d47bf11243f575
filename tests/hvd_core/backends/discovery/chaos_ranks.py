"""The programs of the ranks of test_chaos.py: one function each, named on the command line."""

import sys
import time

import numpy as np

import hvd_core as hvd


def check_values():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for dtype in (np.uint8, np.int8, np.int32, np.int64, np.float16, np.float32, np.float64):
        every = [(np.arange(7) * (r + 1) % 11).astype(dtype) for r in range(size)]
        mine = every[rank]
        wide = np.stack(every).astype(np.float64)
        assert (hvd.allreduce(mine, op=hvd.Sum) == wide.sum(0)).all(), dtype
        assert (hvd.allreduce(mine, op=hvd.Min) == wide.min(0)).all()
        assert (hvd.allreduce(mine, op=hvd.Max) == wide.max(0)).all()
        mean = wide.mean(0) if np.dtype(dtype).kind == "f" else np.trunc(wide.mean(0))
        assert np.allclose(hvd.allreduce(mine, op=hvd.Average).astype(np.float64), mean, rtol=1e-3), dtype
        gathered = np.concatenate([e[: r + 1] for r, e in enumerate(every)])
        assert (hvd.allgather(mine[: rank + 1]) == gathered).all()
        assert (hvd.broadcast(mine, 1) == every[1]).all()
        splits = [(rank + to) % 3 for to in range(size)]
        _, received = hvd.alltoall(np.arange(sum(splits)).astype(dtype) + dtype(rank), splits)
        assert list(received) == [(r + rank) % 3 for r in range(size)]
        assert (hvd.reducescatter(mine, op=hvd.Sum) == np.array_split(wide.sum(0), size)[rank]).all()
    flags = np.array([rank == 0, True, False])
    assert hvd.allreduce(flags, op=hvd.Sum).tolist() == [True, True, False]
    assert hvd.allreduce(flags, op=hvd.Product).tolist() == [False, True, False]
    extreme = np.array([127, -128, -3], np.int8)
    mean = hvd.allreduce(extreme, op=hvd.Average).tolist()
    assert mean == [127, -128, -3], "the sum does not fit, the mean does"
    factors = {"prescale_factor": 0.5, "postscale_factor": 4.0}
    assert hvd.allreduce(np.ones(3, np.float32), op=hvd.Sum, **factors).tolist() == [2 * size] * 3
    hvd.barrier()
    print("right")


def reduce_three_times():
    """Prints the number of the operation that fails, and the reason."""
    hvd.init()
    began = time.monotonic()
    i = 0
    try:
        for i in (1, 2, 3):
            hvd.allreduce(np.ones(4, np.float32), op=hvd.Sum, name=f"t{i}")
        print("passed", round(time.monotonic() - began, 1))
    except hvd.HorovodInternalError as error:
        print(i, str(error).partition("aborted: ")[2])


def reduce_three_times_and_again():
    reduce_three_times()
    hvd.shutdown()
    hvd.init()
    print(hvd.allreduce(np.ones(1, np.int32), op=hvd.Sum))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
