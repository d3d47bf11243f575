"""Notices gradients that a program changes while they are being reduced.

That is a change between backward() and the optimizer's step(), without synchronize(). The ranks' weights drift apart
then, for the change meets the gradient before or after its reduction.

PyTorch counts the changes of each tensor. The count of a gradient is noted when it is sent, and compared when the
optimizer waits for the result. To read it takes as long as to read ``param.grad``: 11 ns on a quiet core, 50 ns on a busy
one, twice per parameter and step. Edits through ``grad.data`` are not counted, nor is the unscaling of a GradScaler: its
step() is looked for among the callers. Used by _reducer.py and optimizer.py, on the thread that submits or synchronizes.
"""

import sys
import warnings
from typing import Any

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

_SCALER_TEXT = (
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


def notice_scaler(optimizer: torch.optim.Optimizer, reducer: Any) -> None:
    """Warn once if a GradScaler calls the optimizer's step(), which calls this, while gradients are being reduced."""
    calls = _CALLS_FUSED_STEP if "found_inf" in vars(optimizer) else _CALLS_STEP
    frame, depth = sys._getframe(2), 3
    for _ in range(_WRAPPERS):
        if frame is None:
            return
        above = calls.get(frame.f_code.co_name)
        if above is not None:
            reducer.has_warned = True
            warnings.warn(_SCALER_TEXT, stacklevel=depth + above)
            return
        frame, depth = frame.f_back, depth + 1
