"""Shared by the workers of benchmarks/gpu.py: the device by its type's name, and clocks that see it. On ranks only."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch


class Bench:
    """The rank's device, and how much of everything. ``rank``, ``local_rank``: of this process."""

    def __init__(self, kind: str, local_rank: int = 0, quick: bool = False) -> None:
        self.kind, self.module, self.quick = kind, getattr(torch, kind), quick
        count = self.module.device_count()
        self.device = torch.device(kind, local_rank % count)
        self.module.set_device(self.device.index)
        self.shared = local_rank >= count

    @property
    def name(self) -> str:
        """The device as its driver calls it."""
        if self.kind == "cuda":
            return torch.cuda.get_device_name(self.device.index)
        return f"simulated device '{self.kind}'"

    def stream(self) -> int:
        """Address of the current stream."""
        return getattr(self.module.current_stream(self.device.index), f"{self.kind}_stream")

    def timed(self, call: Callable[[], None], repeat: int) -> tuple[float, float]:
        """Seconds per call: of the calls alone, and until the device has done them."""
        self.module.synchronize()
        begin = time.perf_counter()
        for _ in range(repeat):
            call()
        called = time.perf_counter() - begin
        self.module.synchronize()
        return called / repeat, (time.perf_counter() - begin) / repeat


def share_a_gpu(rank: int) -> None:
    """Lets ranks use one GPU, whichever way this NCCL has. Before the first communicator."""
    os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    os.environ.setdefault("NCCL_HOSTID", f"rank{rank}")


def write(path: str, found: dict) -> None:
    """Write the file that the conductor reads."""
    Path(path).write_text(json.dumps(found) + "\n")
