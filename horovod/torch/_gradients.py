"""Gradients under way: their records, the tensor that is sent for each, changes by the program, shared memory.

Used by _reducer.py and optimizer.py, on the thread that submits or synchronizes.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from types import FrameType
from typing import Any

import numpy as np
import torch

from horovod.common._elastic_job import ranks_may_change
from horovod.common.basics import engine
from horovod.common.objects import allgather_object
from horovod.common.process_sets import ProcessSet
from horovod.torch._devices import come_after
from horovod.torch._dtypes import REDUCIBLE
from horovod.torch._operations import SparseReduction
from horovod.torch.compression import Compression, Compressor
from hvd_core._frontend import initial_weights
from hvd_core._frontend.memory import shared_array
from hvd_core._frontend.operations import DTYPE_NUMBERS

# The records of a GradientReducer: one for each parameter and each group. Data, for _reducer.py only.


class Slot:
    """One parameter: how many backward passes its gradient still needs, and its pending reduction."""

    __slots__ = (
        "context", "delay", "failed", "given", "group", "handle", "home", "made_on", "name", "nbytes", "param",
        "request", "sent", "sparse_dim", "version", "wire",
    )  # fmt: skip

    def __init__(self, param: torch.Tensor, name: str, delay: int):
        self.param = param
        self.name = name
        self.request = f"allreduce.{name}"  # the name of the request that reduces it
        self.nbytes = param.numel() * param.element_size()
        self.delay = delay
        self.handle: int | SparseReduction | None = None
        self.sent: torch.Tensor | None = None
        self.made_on: torch.Stream | None = None  # stream of a device whose work completes the gradient
        self.wire: torch.Tensor | None = None  # the gradient in the type that is sent, if that is another
        self.home: torch.Tensor | None = None  # for the gradient, in memory that the ranks share
        self.context: Any = None
        self.failed = False  # its reduction could not begin
        # The gradient that was sent, for is_changed(): PyTorch's count of its changes, and the tensor, None where that is
        # `sent`.
        self.version = -1
        self.given: torch.Tensor | None = None
        self.group: Group | None = None
        self.sparse_dim = 0  # of the last gradient; 0 for a dense one


class Group:
    """Parameters that are reduced as one operation, once all their gradients are complete."""

    __slots__ = ("missing", "name", "request", "slots")

    def __init__(self, name: str, slots: list[Slot]):
        self.name, self.request = name, f"grouped_allreduce.{name}"
        self.slots = slots
        self.renew()
        for slot in slots:
            slot.group, slot.request = self, self.request

    def renew(self) -> None:
        """Wait for all members again."""
        self.missing = list(range(len(self.slots) - 1))

    def arrived(self) -> bool:
        """Count one more member whose gradient is complete. Returns whether it was the last one.

        True for one member only, also when several threads call at once.
        """
        try:
            self.missing.pop()
        except IndexError:
            return True
        return False


def empty_sparse(param: torch.Tensor, sparse_dim: int) -> torch.Tensor:
    """A sparse gradient of zeros for `param`."""
    indices = torch.empty((sparse_dim, 0), dtype=torch.int64, device=param.device)
    values = torch.empty((0, *param.shape[sparse_dim:]), dtype=param.dtype, device=param.device)
    return torch.sparse_coo_tensor(indices, values, param.shape, check_invariants=False)


_HALVED = (torch.float32, torch.float64)  # the types that a compression by halves changes


def is_quick(grad: torch.Tensor | None) -> bool:
    """Whether the engine takes a gradient unchanged."""
    return (
        grad is not None
        and grad.layout is torch.strided
        and grad.is_cpu
        and grad.dtype in REDUCIBLE
        and not grad.requires_grad
        and grad.is_contiguous()
        and not grad.is_neg()
    )


def come_after_gradient(slot: Slot) -> None:
    """Let the current stream wait for the stream that completes a gradient: hooks submit on any stream."""
    made_on, slot.made_on = slot.made_on, None
    if made_on is not None and slot.param.grad is not None:
        come_after(made_on, slot.param.grad)


def gradient_of(slot: Slot, sparse_as_dense: bool) -> torch.Tensor:
    """The gradient of a parameter; zeros if this rank did not compute one, since other ranks may have one.

    Raises AssertionError if it has a graph of its own.
    """
    param = slot.param
    grad = param.grad
    if grad is None:
        if slot.sparse_dim and not sparse_as_dense:
            grad = empty_sparse(param, slot.sparse_dim)
        else:
            home = slot.home if param.is_cpu and param.requires_grad else None
            # The model may have been cast or moved since.
            if home is not None and (home.dtype, home.shape) == (param.dtype, param.shape):
                grad = home.zero_()
            else:
                grad = torch.zeros_like(param, requires_grad=False)
        # A frozen member of a group has to be sent too, but must not be changed by the optimizer.
        if param.requires_grad:
            param.grad = grad
    slot.sparse_dim = grad.sparse_dim() if grad.layout is torch.sparse_coo else 0
    if grad.requires_grad:
        raise AssertionError(
            f"The gradient of {slot.name} requires grad itself (create_graph=True), which "
            "DistributedOptimizer cannot reduce. Detach it first, or use hvd.allreduce."
        )
    return grad


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose memory holds its values, a complex tensor as pairs of numbers."""
    tensor = tensor.resolve_conj().resolve_neg()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def wire_form(slot: Slot, grad: torch.Tensor, compression: type[Compressor]) -> torch.Tensor:
    """The tensor that is sent for `grad`: itself if possible, so that it is reduced in place."""
    if slot.sparse_dim:
        grad = grad.to_dense()
    grad = as_real(grad)
    slot.context = None
    wire = slot.wire
    if wire is not None and wire.shape == grad.shape and grad.dtype in _HALVED:
        slot.context = grad.dtype
        return wire.copy_(grad.detach())
    if compression is not Compression.none:
        grad, slot.context = compression.compress(grad)
    return grad if grad.is_contiguous() else grad.contiguous()


def make_wires(slots: list[Slot], wire_dtype: torch.dtype) -> None:
    """Convert float32 and float64 gradients to the type that is sent, all at once."""
    grads, wires = [], []
    for slot in slots:
        grad = slot.param.grad
        if grad is None or not is_quick(grad) or grad.dtype not in _HALVED:
            continue
        if slot.wire is None or slot.wire.shape != grad.shape:
            slot.wire = torch.empty_like(grad, dtype=wire_dtype)
        slot.sent, slot.context = slot.wire, grad.dtype
        grads.append(grad)
        wires.append(slot.wire)
    if grads:
        torch._foreach_copy_(wires, grads)


def store(slot: Slot, compression: type[Compressor]) -> None:
    """Put the result into ``param.grad``, if it was not reduced there."""
    param = slot.param
    if isinstance(slot.handle, SparseReduction):
        param.grad = slot.handle()
        return
    grad = param.grad
    if grad is None:  # the parameter is frozen, or the program has set it to None since the backward
        if not param.requires_grad:
            return
        grad = param.grad = torch.zeros_like(param, requires_grad=False)
    with torch.no_grad():
        reduced = compression.decompress(slot.sent, slot.context)
        if grad.is_complex():
            reduced = torch.view_as_complex(reduced)
        if slot.sparse_dim:
            param.grad = reduced.to_sparse(slot.sparse_dim)
        else:
            grad.copy_(reduced)


# Notices gradients that a program changes while they are being reduced.
#
# That is a change between backward() and the optimizer's step(), without synchronize(). The ranks' weights drift apart
# then, for the change meets the gradient before or after its reduction.
#
# PyTorch counts the changes of each tensor. The count of a gradient is noted when it is sent, and compared when the
# optimizer waits for the result. To read it takes as long as to read ``param.grad``: 11 ns on a quiet core, 50 ns on a
# busy one, twice per parameter and step. Edits through ``grad.data`` are not counted, nor is the unscaling of a
# GradScaler: its step() is looked for among the callers. Used by _reducer.py and optimizer.py, on the thread that
# submits or synchronizes.

_CHANGED = (
    "The gradient of {name} was changed between loss.backward() and optimizer.step(), while it was being reduced, so "
    "the weights of the ranks drift apart. Call optimizer.synchronize() before gradients are read or changed "
    "(clip_grad_norm_, GradScaler.unscale_), and step without a second reduction:\n"
    "    optimizer.synchronize()\n"
    "    ...  # clip, unscale\n"
    "    with optimizer.skip_synchronize():\n"
    "        optimizer.step()"
)

_SCALED = (
    "GradScaler.step(optimizer) has looked at gradients while they were being reduced, so the optimizer may step with "
    "gradients that are still scaled, and the ranks may disagree whether to step. Call optimizer.synchronize() before "
    "it on every rank, and step without a second reduction:\n"
    "    scaler.scale(loss).backward()\n"
    "    optimizer.synchronize()\n"
    "    with optimizer.skip_synchronize():\n"
    "        scaler.step(optimizer)"
)
# The methods of PyTorch's GradScaler that call the optimizer's step(), and how many of its frames the program's line is
# above. Its own step() calls fused optimizers, which get `found_inf` from an enabled scaler. Wrappers of step(), as
# schedulers make them, lie between.
_CALLS_STEP = {"_maybe_opt_step": 2}
_CALLS_FUSED_STEP = {"step": 1}
_WRAPPERS = 4


def note_sent(slot: Slot) -> None:
    """Remember a gradient that is about to be sent. The hot path of the reducer does the same by itself."""
    grad = slot.given = slot.param.grad
    slot.version = -1 if grad is None or grad.layout is not torch.strided else grad._version


def is_changed(slot: Slot, grad: torch.Tensor | None) -> bool:
    """Whether the program has changed the gradient since then; `grad` is that of the parameter now. A gradient that was
    cleared does not count."""
    if grad is None or slot.version < 0:
        return False
    if grad is not (slot.sent if slot.given is None else slot.given):
        return True
    # Views of one tensor, such as of a buffer for all gradients, have one count.
    return grad._version != slot.version and not grad._is_view()


def warn_changed(slot: Slot) -> None:
    """Warn at the line of the program that has called step() or synchronize() of the optimizer."""
    # This function, the reducer's synchronize(), the optimizer's _reduce() and its step() or synchronize().
    warnings.warn(_CHANGED.format(name=slot.name), stacklevel=5)


def warn_of_scaler(optimizer: torch.optim.Optimizer, reducer: Any) -> None:
    """Warn once if a GradScaler calls the optimizer's step(), which calls this, while gradients are being reduced."""
    calls = _CALLS_FUSED_STEP if "found_inf" in vars(optimizer) else _CALLS_STEP
    frame: FrameType | None = sys._getframe(2)
    depth = 3
    for _ in range(_WRAPPERS):
        if frame is None:
            return
        above = calls.get(frame.f_code.co_name)
        if above is not None:
            reducer.has_warned = True
            warnings.warn(_SCALED, stacklevel=depth + above)
            return
        frame, depth = frame.f_back, depth + 1


# Gradients that live in memory which the ranks of a host share: DistributedOptimizer(gradient_buffers="shared").
#
# Each gradient has a *home*, a tensor in one window for all. Where ``param.grad`` is the home, backward adds to it in
# place, and the ranks reduce it without a copy. After ``zero_grad(set_to_none=True)`` autograd makes a new gradient,
# which is copied home when it is submitted, from the cache that backward has left it in. With a compression by halves
# the home is the tensor that is sent. Used by _reducer.py and optimizer.py, on the thread that submits.

_ALIGNMENT = 64


def check_gradient_buffers(gradient_buffers: str | None) -> None:
    """Raise ValueError for a value that DistributedOptimizer does not know."""
    if gradient_buffers not in (None, "shared"):
        raise ValueError(f'gradient_buffers must be None or "shared", not {gradient_buffers!r}.')


def share_memory(slots: Iterable[Slot], wire_dtype: torch.dtype | None, process_set: ProcessSet) -> None:
    """Give the gradients of `slots` their homes. A collective call of the set; where the ranks cannot, its first rank
    warns with the reason.

    Args:
        wire_dtype: of the tensors that are sent; None: the gradients' own.
    """
    if ranks_may_change():
        # Without asking the others: those of a rank that comes later do not call this again.
        return refuse_gradient_buffers("ranks of an elastic job come and go", process_set)
    homes = [(slot, wire_dtype or slot.param.dtype) for slot in slots if _has_home(slot.param)]
    homes.reverse()  # backward goes from the last parameter to the first
    plan = [(slot.name, tuple(slot.param.shape), str(dtype)) for slot, dtype in homes]
    plans = allgather_object(plan, "optimizer_gradient_buffers", process_set)
    if any(other != plans[0] for other in plans):
        return refuse_gradient_buffers("the ranks reduce different parameters", process_set)
    if not plan:
        return refuse_gradient_buffers("no parameter is a contiguous tensor in host memory", process_set)
    places, end = [], 0
    for slot, dtype in homes:
        places.append(end)
        nbytes = slot.param.numel() * dtype.itemsize
        end += (nbytes + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
    set_id: Any = process_set.process_set_id
    memory, why = shared_array(engine(), [end], DTYPE_NUMBERS["uint8"], set_id)
    if why:
        return refuse_gradient_buffers(why, process_set)
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


def refuse_gradient_buffers(why: str, process_set: ProcessSet) -> None:
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


# The weights that an optimizer announces before it reduces their gradients for the first time, so that the engine can
# compare them between ranks (HOROVOD_CHECK_CONSISTENCY=1; see hvd_core/_frontend/initial_weights.py).

REMEDY = "hvd.broadcast_parameters(model.state_dict(), root_rank=0)"

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by their bytes


def announce(name: str, weights: Iterable[tuple[str, torch.Tensor]], process_set: ProcessSet) -> None:
    """Announce the weights whose gradients (or changes) the next request `name` reduces.

    Args:
        name: of the request, with its prefix.
        weights: (name, parameter) pairs.
    """
    number: Any = process_set.process_set_id
    if number is not None:
        readers = [(label, lambda tensor=tensor: values_of(tensor)) for label, tensor in weights]
        initial_weights.announce(name, readers, REMEDY, number)


def values_of(tensor: torch.Tensor) -> np.ndarray | None:
    """The bits of a tensor's elements as integers, in one dimension; a complex number is two elements, as in a broadcast.
    None for a tensor without values, or with another layout than strides."""
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return None
    plain = as_real(tensor.detach()).cpu()
    return plain.contiguous().reshape(-1).view(_INTEGERS[plain.element_size()]).numpy()
