"""A rank of our own alternatives: "torch" is hvd.allreduce_ of horovod.torch, "shared" the same on memory that the ranks
share, "numpy" that of hvd_core."""

from __future__ import annotations

import sys

from harness.rank import Alternative, env_rank, pin, serve

pin(env_rank()[0])

import numpy as np  # noqa: E402


class Torch(Alternative):
    def __init__(self) -> None:
        import torch

        import horovod.torch as hvd

        torch.set_num_threads(1)
        hvd.init()
        self.hvd, self.torch = hvd, torch
        self.rank, self.size = hvd.rank(), hvd.size()
        super().__init__()

    def bind(self, array: np.ndarray, options: dict):
        tensor, allreduce_, total = self.torch.from_numpy(array), self.hvd.allreduce_, self.hvd.Sum
        name = f"bench.{array.size}"
        return lambda: allreduce_(tensor, name=name, op=total)

    def close(self) -> None:
        self.hvd.shutdown()


class Shared(Torch):
    """The same on tensors in memory that the ranks share."""

    def memory(self, count: int) -> np.ndarray:
        from hvd_core import empty

        return empty(count, np.float32)


class Numpy(Alternative):
    def __init__(self) -> None:
        import hvd_core as hvd

        hvd.init()
        self.hvd = hvd
        self.rank, self.size = hvd.rank(), hvd.size()
        super().__init__()

    def bind(self, array: np.ndarray, options: dict):
        allreduce_, total, name = self.hvd.allreduce_, self.hvd.Sum, f"bench.{array.size}"
        return lambda: allreduce_(array, name=name, op=total)

    def close(self) -> None:
        self.hvd.shutdown()


if __name__ == "__main__":
    serve({"torch": Torch, "shared": Shared, "numpy": Numpy}[sys.argv[1]]())
