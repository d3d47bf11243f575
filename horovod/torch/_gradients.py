"""The tensor that is sent for a gradient, and the way of the result into ``param.grad``.

Used by _reducer.py only, on the thread that submits or synchronizes.
"""

import torch

from horovod.torch._devices import come_after
from horovod.torch._slots import Slot, empty_sparse
from horovod.torch._sparse import SparseReduction
from horovod.torch._submit import REDUCIBLE
from horovod.torch.compression import Compression, Compressor

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
            home = slot.home
            # The model may have been cast or moved since.
            fits = (
                home is not None and param.is_cpu and (home.dtype, home.shape) == (param.dtype, param.shape)
            )
            at_home = fits and param.requires_grad
            grad = home.zero_() if at_home else torch.zeros_like(param, requires_grad=False)
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


def wire_form(slot: Slot, grad: torch.Tensor, compression: type[Compressor]) -> torch.Tensor:
    """The tensor that is sent for `grad`: itself if possible, so that it is reduced in place."""
    if slot.sparse_dim:
        grad = grad.to_dense()
    if grad.is_complex():
        grad = torch.view_as_real(grad.resolve_conj())
    grad = grad.resolve_neg()
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
        if not is_quick(grad) or grad.dtype not in _HALVED:
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
