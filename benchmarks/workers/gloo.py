"""A rank of the alternative torch Gloo: torch.distributed.all_reduce on a CPU tensor."""

from __future__ import annotations

import os

from harness.rank import Alternative, env_rank, pin, serve

RANK, SIZE = env_rank()
pin(RANK)

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


class Gloo(Alternative):
    def __init__(self) -> None:
        self.rank, self.size = RANK, SIZE
        super().__init__()
        torch.set_num_threads(1)
        store = dist.FileStore(os.environ["HVD_BENCH_SCRATCH"] + "/gloo", SIZE)
        dist.init_process_group("gloo", store=store, rank=RANK, world_size=SIZE)

    def bind(self, array: np.ndarray, options: dict):
        tensor = torch.from_numpy(array)
        return lambda: dist.all_reduce(tensor)

    def close(self) -> None:
        dist.destroy_process_group()


if __name__ == "__main__":
    serve(Gloo())
