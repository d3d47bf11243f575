"""Gradients that live in memory which the ranks of a host share: DistributedOptimizer(gradient_buffers="shared").

Each gradient has a *home*, a tensor in one window for all. Where ``param.grad`` is the home, backward adds to it in
place, and the ranks reduce it without a copy. After ``zero_grad(set_to_none=True)`` autograd makes a new gradient, which
is copied home when it is submitted, from the cache that backward has left it in. With a compression by halves the home is
the tensor that is sent. Used by _reducer.py and optimizer.py, on the thread that submits.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import torch

from horovod.common._elastic_job import ranks_may_change
from horovod.common.process_sets import ProcessSet
from horovod.torch._gradients import is_quick
from horovod.torch._slots import Slot
from horovod.torch._submit import REDUCIBLE, engine
from horovod.torch.functions import allgather_object
from hvd_core._frontend.element_types import NUMBERS
from hvd_core._frontend.shared_memory import shared_array

_ALIGNMENT = 64


def check(gradient_buffers: str | None) -> None:
    """Raise ValueError for a value that DistributedOptimizer does not know."""
    if gradient_buffers not in (None, "shared"):
        raise ValueError(f'gradient_buffers must be None or "shared", not {gradient_buffers!r}.')


def share(slots: Iterable[Slot], wire_dtype: torch.dtype | None, process_set: ProcessSet) -> None:
    """Give the gradients of `slots` their homes. A collective call of the set; where the ranks cannot, its first rank
    warns with the reason.

    Args:
        wire_dtype: of the tensors that are sent; None: the gradients' own.
    """
    if ranks_may_change():
        # Without asking the others: those of a rank that comes later do not call this again.
        return refuse("ranks of an elastic job come and go", process_set)
    homes = [(slot, wire_dtype or slot.param.dtype) for slot in slots if _has_home(slot.param)]
    homes.reverse()  # backward goes from the last parameter to the first
    plan = [(slot.name, tuple(slot.param.shape), str(dtype)) for slot, dtype in homes]
    plans = allgather_object(plan, "optimizer_gradient_buffers", process_set)
    if any(other != plans[0] for other in plans):
        return refuse("the ranks reduce different parameters", process_set)
    if not plan:
        return refuse("no parameter is a contiguous tensor in host memory", process_set)
    places, end = [], 0
    for slot, dtype in homes:
        places.append(end)
        nbytes = slot.param.numel() * dtype.itemsize
        end += (nbytes + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
    memory, why = shared_array(engine(), [end], NUMBERS["uint8"], process_set.process_set_id)
    if why:
        return refuse(why, process_set)
    storage = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    for (slot, dtype), place in zip(homes, places, strict=True):
        # Not views of one tensor, whose changes PyTorch would count together.
        home = torch.empty(0, dtype=dtype)
        home.set_(storage, place // dtype.itemsize, slot.param.shape, slot.param.stride())
        if wire_dtype is not None and dtype != slot.param.dtype:
            slot.wire = home
        else:
            slot.home = home
    return None


def refuse(why: str, process_set: ProcessSet) -> None:
    """Warn that the gradients stay in ordinary memory. Once: on the first rank of the set."""
    if process_set.rank() == 0:
        warnings.warn(
            f'DistributedOptimizer: gradient_buffers="shared" has no effect, since {why}.', stacklevel=4
        )


def _has_home(param: torch.Tensor) -> bool:
    return (
        param.layout is torch.strided
        and param.is_cpu
        and param.dtype in REDUCIBLE
        and param.is_contiguous()
        and param.numel() > 0
    )


def bring_home(slots: Iterable[Slot]) -> None:
    """Move complete gradients to their homes, all at once; those that have changed their form stay where they are."""
    homes, grads, moved = [], [], []
    for slot in slots:
        home, grad = slot.home, slot.param.grad
        if home is None or grad is home or grad is None:
            continue
        if is_quick(grad) and grad.dtype == home.dtype and grad.shape == home.shape:
            homes.append(home)
            grads.append(grad)
            moved.append(slot)
    if not moved:
        return
    with torch.no_grad():
        torch._foreach_copy_(homes, grads)
    for slot, home in zip(moved, homes, strict=True):
        slot.param.grad = home
