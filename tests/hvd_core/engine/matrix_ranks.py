"""One rank of the matrix test: every operation with every dtype and size on this job, against NumPy.

Started by test_matrix.py through the launcher. Mistakes are collected and printed, results that must be the same
on all ranks are compared bit by bit at the end. The process exits with 1 when anything was wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
import zlib

import numpy as np

import hvd_core as hvd
from expected import (
    BFLOAT16,
    Expected,
    allgather,
    allreduce,
    alltoall,
    broadcast,
    difference,
    is_float,
    reducescatter,
    sample,
    scattered,
)

DTYPES = [
    np.dtype(t)
    for t in ["uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64", "bool"]
] + ([BFLOAT16] if BFLOAT16 else [])
OPS = {name: getattr(hvd, name) for name in ("Sum", "Average", "Min", "Max", "Product", "Adasum")}
LONG = 2**16 + 1
COUNTS = (0, 1, 17, 1023, LONG)
# One type of each width and of each kind of arithmetic is enough above what one chunk holds: tests/backends/host reduces long
# arrays of every type.
TYPES_OF_LONG = [np.dtype(t) for t in ("uint8", "float16", "int32", "float32", "float64")]
LARGE = 2**18 + 3  # of four bytes: more than a slot of the control segment, or all the slots of shm, can hold
# Of a large array the parts are divided alike for every operation.
OPS_OF_LARGE = ("Sum", "Max")


class Matrix:
    """`set_ranks` are the members' global ranks, `ps` is what operations take for them."""

    def __init__(self, set_name: str, ps, set_ranks: list[int]):
        self.set_name, self.ps, self.ranks = set_name, ps, set_ranks
        self.me = set_ranks.index(hvd.rank())
        self.cases = 0
        self.mistakes: list[str] = []
        self.crcs: list[tuple[str, int]] = []  # of results that are the same on all members
        self.samples: dict[tuple, list[np.ndarray]] = {}

    def columns(self, dtype: np.dtype, shape, salt: int = 0) -> list[np.ndarray]:
        key = (dtype, shape, salt)
        if key not in self.samples:
            if len(self.samples) > 64:
                self.samples.clear()
            self.samples[key] = [sample(dtype, r, shape, salt) for r in self.ranks]
        return self.samples[key]

    def check(self, what: str, got: np.ndarray, wanted: Expected, dtype: np.dtype) -> None:
        self.cases += 1
        wrong = "" if got.dtype == dtype else f"dtype {got.dtype}; "
        wrong += difference(got, wanted.arrays[self.me], wanted.tolerance)
        if wrong:
            self.mistakes.append(f"{what}, set {self.set_name}: {wrong}")
        if wanted.same_everywhere:
            self.crcs.append((what, zlib.crc32(np.ascontiguousarray(got).view(np.uint8))))

    def run(self) -> None:
        for dtype in DTYPES:
            for count in COUNTS + ((LARGE,) if dtype == np.float32 else ()):
                if count == LONG and dtype not in TYPES_OF_LONG:
                    continue
                self.reductions(dtype, count)
                self.movements(dtype, count)
            self.groups(dtype)
        hvd.barrier(process_set=self.ps)

    def reductions(self, dtype: np.dtype, count: int) -> None:
        columns = self.columns(dtype, count)
        mine = columns[self.me]
        for op, number in OPS.items():
            if (op == "Adasum" and not is_float(dtype)) or (op == "Average" and dtype == np.bool_):
                continue  # these are refused
            if count == LARGE and op not in OPS_OF_LARGE:
                continue
            what = f"allreduce {op} {dtype} x {count}"
            wanted = allreduce(op, columns)
            got = hvd.allreduce(mine, name=what, op=number, process_set=self.ps)
            self.check(what, got, wanted, dtype)
            own = mine.copy()
            hvd.allreduce_(own, name=what + "_", op=number, process_set=self.ps)
            self.check(what + " in place", own, wanted, dtype)
            if op == "Adasum":
                continue
            what = f"reducescatter {op} {dtype} x {count}"
            got = hvd.reducescatter(mine, name=what, op=number, process_set=self.ps)
            self.check(what, got, scattered(wanted), dtype)
        if not np.array_equal(mine, sample(dtype, self.ranks[self.me], count)):
            self.mistakes.append(f"the input of a reduction of {dtype} x {count} was changed")
        if dtype != np.bool_:
            what = f"allreduce scaled {dtype} x {count}"
            factors = {"prescale_factor": 0.5, "postscale_factor": 3.0}
            got = hvd.allreduce(mine, name=what, op=hvd.Sum, process_set=self.ps, **factors)
            wanted = allreduce("Sum", columns, 0.5, 3.0)
            self.check(what, got, wanted, dtype)
            what = f"reducescatter scaled {dtype} x {count}"
            got = hvd.reducescatter(mine, name=what, op=hvd.Sum, process_set=self.ps, **factors)
            self.check(what, got, scattered(wanted), dtype)

    def movements(self, dtype: np.dtype, count: int) -> None:
        size = len(self.ranks)
        columns = self.columns(dtype, count)
        for root in {0, size - 1}:
            what = f"broadcast from {root} {dtype} x {count}"
            wanted = broadcast(root, columns)
            got = hvd.broadcast(columns[self.me], self.ranks[root], name=what, process_set=self.ps)
            self.check(what, got, wanted, dtype)
            own = columns[self.me].copy()
            hvd.broadcast_(own, self.ranks[root], name=what + "_", process_set=self.ps)
            self.check(what + " in place", own, wanted, dtype)
        # Rows that differ from rank to rank, none on some.
        uneven = [sample(dtype, r, (count * ((i + 1) % 3) // 2, 2), 1) for i, r in enumerate(self.ranks)]
        for what, rows in (("allgather", columns), ("allgather of uneven rows", uneven)):
            what += f" {dtype} x {count}"
            got = hvd.allgather(rows[self.me], name=what, process_set=self.ps)
            self.check(what, got, allgather(rows), dtype)
        rows = [sample(dtype, r, (count // size * size, 3), 2) for r in self.ranks]
        what = f"alltoall {dtype} x {count}"
        even = [[len(rows[0]) // size] * size] * size
        got = hvd.alltoall(rows[self.me], name=what, process_set=self.ps)
        self.check(what, got, alltoall(rows, even), dtype)
        splits = [_uneven_splits(count, size, i) for i in range(size)]
        what = f"alltoall with splits {dtype} x {count}"
        got, received = hvd.alltoall(
            columns[self.me], splits=np.array(splits[self.me]), name=what, process_set=self.ps
        )
        self.check(what, got, alltoall(columns, splits), dtype)
        if list(received) != [s[self.me] for s in splits]:
            self.mistakes.append(f"{what}: received splits {list(received)}")

    def groups(self, dtype: np.dtype) -> None:
        shapes = [(5,), (0, 2), (1023,), (), (3, 2)]
        members = [self.columns(dtype, shape, i) for i, shape in enumerate(shapes)]
        # A group may hold tensors of several dtypes.
        members.append(self.columns(np.dtype("int32"), (7,), 9))
        mine = [m[self.me] for m in members]
        what = f"grouped_allreduce {dtype}"
        got = hvd.grouped_allreduce(mine, name=what, op=hvd.Sum, process_set=self.ps)
        for i, m in enumerate(members):
            self.check(f"{what}, member {i}", got[i], allreduce("Sum", m), m[0].dtype)
        rows = [m for m in members if m[0].ndim]
        mine = [m[self.me] for m in rows]
        what = f"grouped_allgather {dtype}"
        got = hvd.grouped_allgather(mine, name=what, process_set=self.ps)
        for i, m in enumerate(rows):
            self.check(f"{what}, member {i}", got[i], allgather(m), m[0].dtype)
        what = f"grouped_reducescatter {dtype}"
        got = hvd.grouped_reducescatter(mine, name=what, op=hvd.Sum, process_set=self.ps)
        for i, m in enumerate(rows):
            self.check(f"{what}, member {i}", got[i], reducescatter("Sum", m), m[0].dtype)

    def compare_bits(self) -> None:
        """The same cases in the same order on all members, with the same bits."""
        mine = np.array([crc for _, crc in self.crcs], dtype=np.int64)
        everyone = hvd.allgather(mine.reshape(1, -1), name="crcs", process_set=self.ps)
        for i, (what, _) in enumerate(self.crcs):
            if len(set(everyone[:, i].tolist())) > 1:
                self.mistakes.append(f"{what}, set {self.set_name}: the ranks' results differ in their bits")


def _uneven_splits(count: int, size: int, rank: int) -> list[int]:
    """Rows to each rank: more to some, none from this rank to the next."""
    weights = [(rank + 2 * to + 1) % 4 if to != (rank + 1) % size else 0 for to in range(size)]
    if not any(weights):
        weights[rank] = 1
    splits = [count * w // sum(weights) for w in weights]
    splits[rank] += count - sum(splits)
    return splits


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--subset", type=lambda text: [int(r) for r in text.split(",")], required=True)
    args = parser.parse_args()
    hvd.init(process_sets="dynamic")
    subset = hvd.add_process_set(args.subset)
    began = time.monotonic()
    bad = 0
    for name, ps, ranks in (
        ("of all ranks", hvd.global_process_set, list(range(hvd.size()))),
        (f"of ranks {args.subset}", subset, args.subset),
    ):
        if hvd.rank() not in ranks:
            continue
        matrix = Matrix(name, ps, ranks)
        matrix.run()
        matrix.compare_bits()
        bad += len(matrix.mistakes)
        for mistake in matrix.mistakes[:20]:
            print("wrong:", mistake, flush=True)
        print(f"set {name}: {matrix.cases} cases, {len(matrix.mistakes)} wrong", flush=True)
    hvd.barrier()
    hvd.remove_process_set(subset)
    print(f"matrix done after {time.monotonic() - began:.1f} s", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
