"""Notices gradients that a program changes while they are being reduced.

That is a change between backward() and the optimizer's step(), without synchronize(). The ranks' weights drift apart
then, for the change meets the gradient before or after its reduction.

PyTorch counts the changes of each tensor. The count of a gradient is noted when it is sent, and compared when the
optimizer waits for the result. To read it takes as long as to read ``param.grad``: 11 ns on a quiet core, 50 ns on a busy
one, twice per parameter and step. Edits through ``grad.data`` are not counted. Used by _reducer.py, on the thread that
submits or synchronizes.
"""

import warnings

import torch

from horovod.torch._slots import Slot

_TEXT = (
    "The gradient of {name} was changed between loss.backward() and optimizer.step(), while it was being reduced, so "
    "the weights of the ranks drift apart. Call optimizer.synchronize() before gradients are read or changed "
    "(clip_grad_norm_, GradScaler.unscale_), and step without a second reduction:\n"
    "    optimizer.synchronize()\n"
    "    ...  # clip, unscale\n"
    "    with optimizer.skip_synchronize():\n"
    "        optimizer.step()"
)


def note(slot: Slot) -> None:
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


def warn(slot: Slot) -> None:
    """Warn at the line of the program that has called step() or synchronize() of the optimizer."""
    # This function, the reducer's synchronize(), the optimizer's _reduce() and its step() or synchronize().
    warnings.warn(_TEXT.format(name=slot.name), stacklevel=5)
