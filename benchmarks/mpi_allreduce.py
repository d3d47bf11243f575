#!/usr/bin/env python3
"""The backend mpi beside MPI itself: an allreduce through hvd_core, and mpi4py's, in place, by turns in one job.

    mpirun -np 2 python benchmarks/mpi_allreduce.py                 # 4 B to 64 MiB
    mpirun -np 2 python benchmarks/mpi_allreduce.py --sizes 64K,1M --rounds 40 --json result.json

Both use the same MPI library, initialised once. Per size and round: the ranks meet at MPI's barrier, one of the two
sums a buffer of float32 in place, --calls times in a row, then they meet again and the other one does; which one is
first changes from round to round. A run lasts until the slower rank has its result (MPI's MAX over the ranks); a row
shows the time of one call. `ratio` is the median of the rounds' ratios, not of the medians. With --calls 1 each call
comes to an engine that has gone to sleep. Needs mpi4py for the launcher's MPI and hvd-backend-mpi.

`hvd` waits for each result before it asks for the next. `in flight` is how training uses it: --in-flight tensors are
asked for, then waited for together, so that the ranks agree on one while MPI moves another; HOROVOD_FUSION_THRESHOLD=0
keeps the engine from making one message of them. MPI does the same tensors one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time

os.environ.setdefault("HOROVOD_BACKEND", "mpi")

import numpy as np
from mpi4py import MPI

import hvd_core

SIZES = "4,64,1K,4K,16K,64K,128K,256K,512K,1M,4M,16M,64M"
UNITS = {"K": 1 << 10, "M": 1 << 20}


def bytes_of(text: str) -> int:
    """65536 of "64K"."""
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def run(world: MPI.Comm, way, buffers: list[np.ndarray], calls: int) -> float:
    """Seconds of one of about `calls` sums in a row, of the slowest rank: each buffer in turn."""
    for buffer in buffers:
        buffer.fill(1.0)
    times = max(1, calls // len(buffers))
    world.Barrier()
    started = time.perf_counter()
    for _ in range(times):
        way(buffers)
    took = world.allreduce(time.perf_counter() - started, op=MPI.MAX)
    for buffer in buffers:
        assert buffer[0] == buffer[-1] == float(world.size) ** times
    return took / (times * len(buffers))


def one_by_one(world: MPI.Comm):
    def way(buffers):
        for buffer in buffers:
            world.Allreduce(MPI.IN_PLACE, buffer)

    return way


def waiting(buffers):
    for i, buffer in enumerate(buffers):
        hvd_core.allreduce_(buffer, op=hvd_core.Sum, name=f"b{i}.{buffer.nbytes}")


def in_flight(buffers):
    handles = [
        hvd_core.allreduce_async_(buffer, op=hvd_core.Sum, name=f"b{i}.{buffer.nbytes}")
        for i, buffer in enumerate(buffers)
    ]
    for handle in handles:
        hvd_core.synchronize(handle)


def rounds_for(nbytes: int, wished: int | None) -> int:
    return wished or max(9, min(300, (48 << 20) // nbytes))


def beside(world: MPI.Comm, name: str, way, buffers: list[np.ndarray], options) -> dict[str, float]:
    """Medians in us of one sum by MPI and by `way`, by turns, and of the rounds' ratios."""
    times: dict[str, list[float]] = {"mpi4py": [], name: []}
    both = {"mpi4py": one_by_one(world), name: way}
    for turn in range(rounds_for(buffers[0].nbytes * len(buffers), options.rounds) + 3):
        for key in both if turn % 2 else reversed(both):
            times[key].append(run(world, both[key], buffers, options.calls))
    mpi, own = times["mpi4py"][3:], times[name][3:]
    return {
        f"mpi4py, {name}": statistics.median(mpi) * 1e6,
        name: statistics.median(own) * 1e6,
        f"ratio, {name}": statistics.median(h / m for h, m in zip(own, mpi)),
    }


def main() -> int:
    p = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.RawTextHelpFormatter
    )
    p.add_argument("--sizes", default=SIZES, help=f"bytes of the buffer ({SIZES})")
    p.add_argument("--rounds", type=int, help="of each size; without: 9 to 300, by size")
    p.add_argument(
        "--calls", type=int, default=20, help="in a row (20); sums stay exact up to 20 on 64 ranks"
    )
    p.add_argument("--in-flight", type=int, default=8, metavar="N", help="tensors asked for at once (8)")
    p.add_argument("--json", metavar="FILE")
    options = p.parse_args()
    hvd_core.init()
    world, rows = MPI.COMM_WORLD, []
    ways = {"hvd": (waiting, 1), "in flight": (in_flight, options.in_flight)}
    if hvd_core.rank() == 0:
        library = MPI.Get_library_version().replace("\n", ",").split(",")[0]
        print(f"{library}, {world.size} ranks; times in us, medians; {options.in_flight} tensors in flight")
        print(
            f"{'bytes':>10}" + "".join(f" {'mpi4py':>10} {name:>10} {'ratio':>7}" for name in ways),
            flush=True,
        )
    for nbytes in map(bytes_of, options.sizes.split(",")):
        row = {"bytes": nbytes}
        for name, (way, count) in ways.items():
            row |= beside(
                world, name, way, [np.empty(nbytes // 4, np.float32) for _ in range(count)], options
            )
        rows.append(row)
        if hvd_core.rank() == 0:
            text = "".join(
                f" {row[f'mpi4py, {name}']:>10.1f} {row[name]:>10.1f} {row[f'ratio, {name}']:>7.2f}"
                for name in ways
            )
            print(f"{nbytes:>10}{text}", flush=True)
    if options.json and hvd_core.rank() == 0:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)
    hvd_core.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
