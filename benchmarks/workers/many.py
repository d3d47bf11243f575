"""A rank that sums many tensors at once, with our engine ("ours", "shared") or torch Gloo ("gloo"), in several forms.

Forms: "each": start one asynchronous allreduce per tensor, then wait for all. "grouped" (ours): the list as
one request. "buckets" (gloo): as DistributedDataParallel does, copy into 25 MiB buckets, reduce those,
copy back. "one": a single buffer of the same total size, the yardstick.
"""

from __future__ import annotations

import os
import sys
import time

from harness.rank import Alternative, env_rank, pin, serve
from harness.shapes import CASES

pin(env_rank()[0])

import numpy as np  # noqa: E402
import torch  # noqa: E402

BUCKET_BYTES = 25 << 20


class Many(Alternative):
    def forms(self) -> dict:
        raise NotImplementedError

    def tensors(self, shapes: list) -> list:
        return [torch.empty(shape) for shape in shapes]

    def extra(self, command: dict) -> dict:
        """{"do": "many", "case", "form", "iters"} -> time stamps as for "measure". Checks results."""
        shapes, iters = CASES[command["case"]](), command["iters"]
        if command["form"] == "one":
            shapes = [(sum(int(np.prod(shape)) for shape in shapes),)]
        tensors = self.tensors(shapes)
        run = self.forms()[command["form"]](command["case"], tensors)
        stamps = np.zeros((2, iters), dtype=np.int64)
        for i in range(iters):
            for tensor in tensors:
                tensor.fill_(self.rank + 1 + i % 7)
            self.barrier()
            begin = time.perf_counter_ns()
            run()
            stamps[:, i] = begin, time.perf_counter_ns()
        total = self.size * (self.size + 1) // 2 + self.size * ((iters - 1) % 7)
        for i, tensor in enumerate(tensors):
            if not bool((tensor == total).all()):
                raise ValueError(f"{command}: tensor {i} of {len(tensors)} is not {total} everywhere")
        return {"start": stamps[0].tolist(), "end": stamps[1].tolist()}


class Ours(Many):
    def __init__(self) -> None:
        import horovod.torch as hvd

        hvd.init()
        self.hvd = hvd
        self.rank, self.size = hvd.rank(), hvd.size()
        super().__init__()

    def forms(self) -> dict:
        return {"each": self.each, "grouped": self.grouped, "one": self.one}

    def each(self, case: str, tensors: list):
        start, wait, total = self.hvd.allreduce_async_, self.hvd.synchronize, self.hvd.Sum
        named = [(tensor, f"{case}.{i}") for i, tensor in enumerate(tensors)]

        def run() -> None:
            for handle in [start(tensor, name=name, op=total) for tensor, name in named]:
                wait(handle)

        return run

    def grouped(self, case: str, tensors: list):
        return lambda: self.hvd.grouped_allreduce_(tensors, name=f"{case}.group", op=self.hvd.Sum)

    def one(self, case: str, tensors: list):
        return lambda: self.hvd.allreduce_(tensors[0], name=f"{case}.one", op=self.hvd.Sum)

    def close(self) -> None:
        self.hvd.shutdown()


class Shared(Ours):
    """The same, with all tensors in one piece of memory that the ranks share."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, list] = {}

    def tensors(self, shapes: list) -> list:
        key = str(shapes)
        if key not in self.kept:
            from hvd_core import empty

            ends = np.cumsum([0, *((int(np.prod(shape)) + 15) // 16 * 16 for shape in shapes)])
            memory = torch.from_numpy(empty(int(ends[-1]), np.float32))
            self.kept[key] = [
                memory[int(at) : int(at) + int(np.prod(shape))].view(shape) for at, shape in zip(ends, shapes)
            ]
        return self.kept[key]


class Gloo(Many):
    def __init__(self) -> None:
        import torch.distributed as dist

        self.dist = dist
        self.rank, self.size = env_rank()
        super().__init__()
        store = dist.FileStore(os.environ["HVD_BENCH_SCRATCH"] + "/gloo", self.size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.size)

    def forms(self) -> dict:
        return {"each": self.each, "buckets": self.buckets, "one": self.one}

    def each(self, case: str, tensors: list):
        def run() -> None:
            for work in [self.dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
                work.wait()

        return run

    def buckets(self, case: str, tensors: list):
        groups: list[list] = [[]]
        for tensor in tensors:
            if groups[-1] and sum(t.nbytes for t in groups[-1]) + tensor.nbytes > BUCKET_BYTES:
                groups.append([])
            groups[-1].append(tensor)
        flats = [torch.empty(sum(t.numel() for t in group)) for group in groups]
        views = [
            [part.view_as(t) for part, t in zip(flat.split([t.numel() for t in group]), group)]
            for flat, group in zip(flats, groups)
        ]

        def run() -> None:
            works = []
            for flat, parts, group in zip(flats, views, groups):
                torch._foreach_copy_(parts, group)
                works.append(self.dist.all_reduce(flat, async_op=True))
            for work, parts, group in zip(works, views, groups):
                work.wait()
                torch._foreach_copy_(group, parts)

        return run

    def one(self, case: str, tensors: list):
        return lambda: self.dist.all_reduce(tensors[0])

    def close(self) -> None:
        self.dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve({"ours": Ours, "shared": Shared, "gloo": Gloo}[sys.argv[1]]())
