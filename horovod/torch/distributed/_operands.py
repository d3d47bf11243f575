"""Tensors of torch.distributed in the form that the engine takes: dense, real, of a type that it knows.

The engine writes to the memory of the tensors that it gets. So a tensor that it can take as it is costs no copy; another
one is copied, and a result is copied back when the operation is over. Pure functions; any thread.
"""

from collections.abc import Sequence
from typing import Any

import torch

from horovod.torch import _devices, _staging
from horovod.torch._dtypes import DTYPE_NUMBERS, MOVABLE
from horovod.torch._submit import check, operands
from hvd_core._runtime.process_sets import ProcessSet

_REDUCED = frozenset(DTYPE_NUMBERS)


class Operand:
    """One tensor, flat, as the engine takes it: `flat`. `own`: whether that is a copy."""

    __slots__ = ("flat", "own", "tensor")

    def __init__(self, tensor: torch.Tensor, flat: torch.Tensor, own: bool):
        self.tensor, self.flat, self.own = tensor, flat, own

    def copy_back(self) -> None:
        """Put the result into the tensor, if the engine has written to a copy."""
        if self.own:
            fill(self.tensor, self.flat)


def fill(tensor: torch.Tensor, flat: torch.Tensor) -> None:
    """Write the values of a flat tensor of operand() to `tensor`. Autograd does not see it."""
    target = tensor.detach()
    if flat.dtype is not target.dtype:
        flat = flat.view(target.dtype) if not target.is_complex() else torch.view_as_complex(flat.view(-1, 2))
    target.copy_(flat.view(target.shape))


def operand(tensor: Any, reduces: bool, process_set: ProcessSet, contents: bool = True) -> Operand:
    """A tensor as the engine takes it. `contents`: whether its values are read.

    Raises:
        ValueError: not a dense tensor, or of a type that the engine does not know, or on a device that it cannot use.
    """
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"A torch.Tensor is required, but found {type(tensor).__name__}.")
    plain = tensor.detach() if tensor.requires_grad else tensor
    if plain.layout is not torch.strided:
        raise ValueError(f"hvd: a dense tensor is required, but found one of layout {plain.layout}.")
    own = False
    if not plain.is_contiguous() or plain.is_conj() or plain.is_neg():
        own = True
        plain = (
            plain.resolve_conj().resolve_neg().contiguous()
            if contents
            else torch.empty(plain.shape, dtype=plain.dtype, device=plain.device)
        )
        if plain.data_ptr() == tensor.data_ptr() and plain.numel():
            plain = plain.clone(memory_format=torch.contiguous_format)
    if plain.dim() != 1:
        plain = plain.view(-1)
    if plain.dtype not in (_REDUCED if reduces else MOVABLE):
        if plain.is_complex():
            plain = torch.view_as_real(plain).view(-1)
        elif not reduces:
            plain = plain.view(torch.uint8)
    check(plain, _REDUCED if reduces else MOVABLE, process_set)
    return Operand(tensor, plain, own)


def complex_sums_only(tensors: Sequence[torch.Tensor], is_sum: bool) -> None:
    """Raise ValueError for complex tensors in a reduction that is no sum: it would treat their parts alone."""
    if not is_sum and any(t.is_complex() for t in tensors):
        raise ValueError("hvd: complex tensors can be reduced by SUM and AVG only.")


class Taken:
    """The tensors of one request in the engine's form.

    Args:
        core: the engine.
        inputs, outputs: flat tensors of operand(), a list may be empty; one list for an operation in place.
        sent, received: whether the operation reads `inputs` and writes `outputs` on this rank.
    """

    __slots__ = ("device", "sources", "targets")

    def __init__(self, core: Any, inputs: list, outputs: list, sent: bool = True, received: bool = True):
        first = (inputs or outputs)[0]
        # The operation on a device; None in host memory.
        self.device: _devices.Submitted | _staging.Staged | None = None
        if first.is_cpu:
            self.sources = operands(inputs)
            self.targets = self.sources if outputs is inputs else operands(outputs)
            return
        if text := _devices.several_devices([*inputs, *outputs]):
            raise ValueError(f"hvd: {text}")
        if _devices.is_served(first, core):
            self.device = _devices.Submitted(inputs, outputs)
        else:
            # Results that are not those of an operation in place must not be written to the copies of the inputs.
            self.device = _staging.Staged(inputs, outputs, sent, received, outputs is not inputs)
        self.sources, self.targets = self.device.sources, self.device.targets
