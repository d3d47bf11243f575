"""Rank program of benchmarks/gpu.py: allreduces of ours and of NCCL itself, batch by batch, in turns."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import horovod.torch as hvd
from harness.devices import Bench, share_a_gpu, write
from harness.raw_nccl import RawNccl
from harness.shapes import resnet50
from hvd_core.bench._report import size_text

SIZES = (4, 64 << 10, 1 << 20, 16 << 20, 256 << 20)


def cases(quick: bool) -> dict[str, list[int]]:
    """Name -> elements of each tensor of the batch."""
    if quick:
        return {"4 B": [1], "64 KiB": [16 << 10], "5 x 4 KiB": [1 << 10] * 5}
    found = {size_text(size): [size // 4] for size in SIZES}
    found["50 x 64 KiB"] = [16 << 10] * 50
    found["ResNet-50's 161"] = [math.prod(shape) for shape in resnet50()]
    return found


def repeats(elements: int, quick: bool) -> int:
    """How often a batch is called in one turn: enough for the clock, not too much for the device."""
    return 3 if quick else max(10, min(300, (1 << 28) // max(elements, 1)))


class Batch:
    """The tensors of a case, and the ways to reduce them."""

    def __init__(self, bench: Bench, name: str, counts: list[int], nccl: RawNccl | None) -> None:
        self.bench, self.name, self.nccl = bench, name, nccl
        self.tensors = [torch.zeros(count, device=bench.device) for count in counts]
        self.whole = torch.zeros(sum(counts), device=bench.device) if len(counts) > 1 else self.tensors[0]
        self.buffers = [(tensor.data_ptr(), tensor.numel()) for tensor in self.tensors]
        self.ways = {"ours": self.ours}
        if nccl is not None:
            self.ways["nccl"] = self.raw
            if len(counts) > 1:
                self.ways["nccl, one buffer"] = self.raw_whole

    def ours(self) -> None:
        if len(self.tensors) == 1:
            hvd.allreduce_(self.tensors[0], op=hvd.Sum, name=self.name)
        else:
            hvd.grouped_allreduce_(self.tensors, op=hvd.Sum, name=self.name)

    def raw(self) -> None:
        if len(self.buffers) == 1:
            self.nccl.allreduce(*self.buffers[0], self.bench.stream())
        else:
            self.nccl.allreduce_all(self.buffers, self.bench.stream())

    def raw_whole(self) -> None:
        self.nccl.allreduce(self.whole.data_ptr(), self.whole.numel(), self.bench.stream())

    def check(self, way: str) -> None:
        """Right, or nothing is worth measuring."""
        for tensor in {id(t): t for t in [*self.tensors, self.whole]}.values():
            tensor.fill_(1.0)
        self.ways[way]()
        found = self.whole if way == "nccl, one buffer" else self.tensors[-1]
        if not bool((found == hvd.size()).all()):
            raise SystemExit(f"{self.name}, {way}: wrong results: {found[:4].tolist()}")
        for tensor in [*self.tensors, self.whole]:
            tensor.zero_()


def main() -> None:
    kind, rounds, out, *quick = sys.argv[1:]
    hvd.init()
    if kind == "cuda" and hvd.local_size() > torch.cuda.device_count():
        share_a_gpu(hvd.rank())
    bench = Bench(kind, hvd.local_rank(), bool(quick))
    hvd.allreduce_(torch.zeros(1, device=bench.device), name="first")  # the backend's library is loaded now
    nccl = None
    if kind == "cuda":
        nccl = RawNccl(hvd.rank(), hvd.size(), lambda data: hvd.broadcast_object(data, 0, name="id"))
    found: dict = {"device_name": bench.name, "shared": bench.shared, "cases": {}, "bytes": {}, "repeats": {}}
    for name, counts in cases(bench.quick).items():
        batch = Batch(bench, name, counts, nccl)
        times: dict = {way: {"host": [], "device": []} for way in batch.ways}
        found["repeats"][name] = repeats(sum(counts), bench.quick)
        for way in batch.ways:
            batch.check(way)
        for turn in range(int(rounds) + 1):
            for way, call in batch.ways.items():
                hvd.barrier()
                host, device = bench.timed(call, found["repeats"][name])
                if turn:  # the first warms up
                    times[way]["host"].append(host)
                    times[way]["device"].append(device)
        found["cases"][name], found["bytes"][name] = times, 4 * sum(counts)
        del batch
    if nccl is not None:
        nccl.close()
    if hvd.rank() == 0:
        write(out, found)
    hvd.shutdown()


if __name__ == "__main__":
    main()
