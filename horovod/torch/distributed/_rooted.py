"""gather and scatter of large tensors in host memory: each part goes straight from and to the tensor of its rank.

One alltoall with a tensor for each rank that is not the root: that rank sends its part to the root, or gets it from
there, and the other ranks have an empty tensor in its place. The root's own part is copied here. See _group.py.
"""

from collections.abc import Callable
from typing import Any

import torch

from horovod.torch.distributed._operands import Operand, Taken, fill, operand

# Smaller parts are joined, which costs less than a tensor for each rank; so do the parts of many ranks.
_LEAST_BYTES, _MOST_RANKS = 64 << 10, 16

# The tensors, `splits` and `received` of Engine.ordered(), and what puts the results where they belong.
Exchange = tuple[Taken, dict, Callable[[], None] | None]


def goes_apart(flat: torch.Tensor, size: int) -> bool:
    """Whether the parts of a gather or scatter are exchanged so; `flat`: this rank's part. Equal on all ranks."""
    return flat.is_cpu and flat.numel() * flat.element_size() >= _LEAST_BYTES and 1 < size <= _MOST_RANKS


def gathered(calls: Any, rank: int, size: int, root: int, sent: Operand, results: list) -> Exchange:
    """A gather. `sent`: this rank's part; `results`: on the root, the tensor for each rank."""
    others, nothing, count = _others(size, root), sent.flat.new_empty(0), sent.flat.numel()
    if rank != root:
        inputs = [sent.flat if other == rank else nothing for other in others]
        numbers = {
            "splits": _rows(size, count, [root if other == rank else None for other in others]),
            "received": _rows(size, count, [None] * len(others)),
        }
        return Taken(calls.core, inputs, [nothing] * len(others)), numbers, None
    places = [operand(tensor, False, calls.process_set, False) for tensor in results]

    def finish() -> None:
        fill(results[root], sent.flat)
        for other in others:
            places[other].copy_back()

    numbers = {
        "splits": _rows(size, count, [None] * len(others)),
        "received": _rows(size, count, others),
    }
    outputs = [places[other].flat for other in others]
    return Taken(calls.core, [nothing] * len(others), outputs), numbers, finish


def scattered(calls: Any, rank: int, size: int, root: int, parts: list, place: Operand) -> Exchange:
    """A scatter. `parts`: on the root, the tensor for each rank; `place`: for this rank's part."""
    others, nothing, count = _others(size, root), place.flat.new_empty(0), place.flat.numel()
    if rank != root:
        outputs = [place.flat if other == rank else nothing for other in others]
        numbers = {
            "splits": _rows(size, count, [None] * len(others)),
            "received": _rows(size, count, [root if other == rank else None for other in others]),
        }
        finish = place.copy_back if place.own else None
        return Taken(calls.core, [nothing] * len(others), outputs), numbers, finish
    sent = [operand(part, False, calls.process_set).flat for part in parts]
    for flat in sent:
        if flat.numel() != count:
            raise ValueError(
                f"scatter: each of the {size} inputs must have as many elements as the output, {place.tensor.numel()}."
            )
    numbers = {
        "splits": _rows(size, count, others),
        "received": _rows(size, count, [None] * len(others)),
    }
    taken = Taken(calls.core, [sent[other] for other in others], [nothing] * len(others))
    return taken, numbers, lambda: fill(place.tensor, sent[root])


def _others(size: int, root: int) -> list[int]:
    return [rank for rank in range(size) if rank != root]


def _rows(size: int, count: int, at: list) -> list[int]:
    """For each tensor one number for each rank: `count` for the rank at[i], if it is not None, and 0 for the others."""
    return [count if rank == one else 0 for one in at for rank in range(size)]
