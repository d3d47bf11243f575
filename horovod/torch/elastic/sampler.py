"""ElasticSampler: which samples of a dataset a rank processes, also when ranks come and go within an epoch."""

import math
import random
from collections.abc import Iterator, Sized
from typing import Any

import torch

from horovod.common.exports import rank, size

__all__ = ["ElasticSampler"]


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Deals the samples of an epoch out to the ranks, and after a change of the ranks those that are left of it.

    Put it into the state, so that it is saved and sent: ``TorchState(..., sampler=sampler)``. Call record_batch() after
    each batch, and set_epoch() at the *end* of each epoch: it begins the next one.

    Args:
        dataset: anything with a length.
        shuffle: deal the samples out in another order in each epoch, the same on all ranks.
        seed: chooses these orders; equal on all ranks.

    Attributes:
        dataset, shuffle, seed: the arguments.
        epoch: the number of the epoch.
        processed_num: the samples of this epoch that all ranks have processed.
        num_replicas, rank: of the present world.
        remaining_indices: the samples of this epoch that were left when the ranks last changed.
        num_samples: how many of them this rank processes.
        total_size: how many all ranks process. The first samples are repeated where they cannot be divided evenly.
        indices: the samples of all ranks in the last iteration, the repeated ones included.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch: int = 0
        self.processed_num: int = 0
        self.num_replicas: int = 0
        self.rank: int = 0
        self.remaining_indices: list[int] = []
        self.num_samples: int = 0
        self.total_size: int = 0
        self.indices: list[int] = []
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch: no sample of it has been processed."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Note that each rank has processed a batch of `batch_size` samples. `batch_idx` is not used."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Deal the samples that are left out to the ranks of the present world."""
        self.num_replicas = size()
        self.rank = rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        left = self.remaining_indices
        repeated = math.ceil(self.total_size / len(left)) if left else 0
        self.indices = (left * repeated)[: self.total_size]
        # Every num_replicas-th: after k samples on each rank, the first k * num_replicas are processed.
        return iter(self.indices[self.rank : self.total_size : self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples
