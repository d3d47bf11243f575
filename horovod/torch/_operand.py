"""The tensors of a call in the form that the engine takes, and the results that are made of what it returns.

The engine takes a tensor in host memory unchanged if its type has DLPack's C exchange API, and as an address otherwise
(older torch, or HOROVOD_TORCH_NO_DLPACK_API=1). Tensors on devices: `_devices`; on devices that no backend serves:
`_staging`. Any thread that holds the GIL.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.utils.dlpack import from_dlpack

from horovod.common.basics import engine
from horovod.common.process_sets import ProcessSet
from horovod.torch import _devices, _staging
from horovod.torch._devices import reference
from horovod.torch._dtypes import MOVABLE, REDUCIBLE, as_sent, why_not
from hvd_core._runtime.process_sets import why_no_number

if TYPE_CHECKING:
    from hvd_core._core import Engine

_Value = TypeVar("_Value")

# Read once: asking per call would cost more than the answer saves.
BY_ADDRESS = (
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
    or os.environ.get("HOROVOD_TORCH_NO_DLPACK_API", "0") == "1"
)

# ---------------------------------------------------------------------------------------------------------- checks


def reject(tensor: Any, allowed: frozenset[torch.dtype], process_set: Any) -> bool:
    """Raise the error that says why `tensor` cannot be communicated. Called when a check has failed; returns the result
    of `check` if nothing is wrong.

    Raises:
        ValueError: not a tensor, a type or layout that is not supported, not contiguous, on a device that no backend
            serves, or the process set is not registered.
    """
    if not isinstance(process_set, ProcessSet):
        text = why_no_number(process_set)
    elif not isinstance(tensor, torch.Tensor):
        text = f"A torch.Tensor is required, but found {type(tensor).__name__}: {tensor!r:.80}."
    elif tensor.layout is not torch.strided or tensor.dtype not in allowed:
        text = why_not(tensor, allowed is REDUCIBLE)
    elif (
        not tensor.is_cpu
        and not _devices.is_served(tensor, engine())
        and (refusal := _staging.why_not(tensor))
    ):
        text = refusal
    elif not tensor.is_contiguous():
        text = (
            f"Tensor is required to be contiguous. Its shape is {tuple(tensor.shape)}, its strides are "
            f"{tensor.stride()}: pass tensor.contiguous(), and copy the result back."
        )
    elif tensor.is_neg():
        # Its memory holds the values with the other sign.
        text = (
            "Tensor has the negative bit set, as the imaginary part of a conjugated tensor has. "
            "Pass tensor.resolve_neg()."
        )
    elif process_set.process_set_id is None:
        text = why_no_number(process_set)
    else:
        return not tensor.is_cpu
    raise ValueError(text)


def check(tensor: Any, allowed: frozenset[torch.dtype], process_set: Any) -> bool:
    """Whether `tensor` is on a device, rather than in host memory.

    Raises ValueError unless it is contiguous, of an allowed type, on a device that is served, and the set registered.
    """
    try:
        if (
            tensor.dtype in allowed
            and tensor.is_cpu
            and tensor.is_contiguous()
            and not tensor.is_neg()
            and process_set.process_set_id is not None
        ):
            return False
    except (AttributeError, RuntimeError):
        pass  # no tensor, or a layout without strides
    return reject(tensor, allowed, process_set)


def check_all(tensors: Sequence[Any], allowed: frozenset[torch.dtype], process_set: Any) -> bool:
    """Whether the tensors of a group are on a device: `check` for each, all on the same one."""
    on_device = [check(tensor, allowed, process_set) for tensor in tensors]
    if any(on_device):
        text = _devices.several_devices(tensors)
        if text:
            raise ValueError(text)
        return True
    return False


def dense(tensor: _Value) -> _Value:
    """A tensor that is only sent, as one that is contiguous. Any other value unchanged, for the checks to refuse."""
    if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided and not tensor.is_contiguous():
        return tensor.contiguous()
    return tensor


def empty_like(tensor: _Value) -> _Value:
    """A new tensor for the result. A value that is not a tensor is returned unchanged, for the checks to refuse.

    Raises:
        ValueError: the tensor has a layout that is not supported and that PyTorch makes no tensor of, such as mkldnn's.
    """
    if not isinstance(tensor, torch.Tensor):
        return tensor
    try:
        return torch.empty_like(tensor, requires_grad=False)
    except NotImplementedError as error:
        raise ValueError(why_not(tensor, reduces=False)) from error


def in_host_form(tensors: list[torch.Tensor]) -> list[Any]:
    """The form in which the engine takes tensors in host memory."""
    return [reference(t) for t in tensors] if BY_ADDRESS else tensors


# --------------------------------------------------------------------------------------------------------- Operand


class Operand:
    """The tensors of one call: `sources` and `targets` for the engine, and the results for the caller.

    Args:
        tensors: of the caller. They are contiguous, or the call fails.
        outputs: where the results go: `tensors` itself for an operation in place; None: the engine allocates them.
        allowed: the types that the operation takes.
        process_set: of the call.
        grouped: the call is that of a group: its result is a list, and the engine takes lists.
        reads, writes: whether the operation reads `tensors` and writes the outputs on this rank.

    Raises:
        ValueError: see reject().
    """

    __slots__ = ("_device", "_grouped", "_outputs", "_types", "sources", "targets")

    def __init__(
        self,
        tensors: list[torch.Tensor],
        outputs: list[torch.Tensor] | None,
        allowed: frozenset[torch.dtype],
        process_set: Any,
        grouped: bool,
        reads: bool = True,
        writes: bool = True,
    ):
        sent, received = tensors, outputs
        if allowed is MOVABLE:
            sent = [as_sent(tensor) for tensor in tensors]
            if outputs is not None:
                received = sent if outputs is tensors else [as_sent(tensor) for tensor in outputs]
        self._grouped, self._outputs = grouped, outputs
        self._device: _devices.Submitted | _staging.Staged | None = None
        sources: Sequence[Any]
        targets: Sequence[Any]
        if check_all(sent, allowed, process_set):
            self._device = _staging.submitted(sent, received, engine(), reads, writes)
            sources, targets = self._device.sources, self._device.targets
        else:
            sources = targets = in_host_form(sent)
            if received is not None and received is not sent:
                targets = in_host_form(received)
        self._types = [tensor.dtype for tensor in tensors] if outputs is None else []
        self.sources: Any = sources if grouped else sources[0]
        self.targets: Any = targets if grouped else targets[0]

    @property
    def is_staged(self) -> bool:
        """Whether the operation begins when the tensors have been copied to host memory."""
        return self._device is not None and self._device.deferred

    @property
    def needs_finish(self) -> bool:
        """Whether the results have to be fetched from the engine, or the stream of a device has to wait for them."""
        return self._device is not None or self._outputs is None

    def begin(self, core: Engine, handle: int, wait: bool) -> None:
        """Let the submitted operation begin, if it has not. The engine keeps the tensors from here on."""
        self.sources = self.targets = None
        if self._device is not None:
            self._device.begin(core, handle, wait)

    def outputs(self) -> Any:
        """The caller's outputs: a tensor, or a list for a group."""
        assert self._outputs is not None
        return self._outputs if self._grouped else self._outputs[0]

    def finish(self, core: Engine, handle: int) -> Any:
        """The results of an operation that is done, or on a device enqueued: then the current stream waits for it."""
        results: Sequence[torch.Tensor] = ()
        if self._device is not None:
            results = self._device.all(core, handle)
        elif self._outputs is None:
            results = [from_dlpack(core.output(handle, i)) for i in range(len(self._types))]
        if self._outputs is not None:
            return self.outputs()
        # A type that is sent as bytes is returned as bytes.
        results = [
            each if each.dtype is dtype else each.view(dtype) for each, dtype in zip(results, self._types)
        ]
        return results if self._grouped else results[0]


class ExchangeOperand(Operand):
    """The tensor of an alltoall, whose result is a pair: the received rows, and how many came from each rank."""

    __slots__ = ("_splits_device", "_splits_type")

    def __init__(self, tensors: list[torch.Tensor], splits: Any, process_set: Any):
        super().__init__(tensors, None, MOVABLE, process_set, grouped=False)
        is_tensor = isinstance(splits, torch.Tensor)
        self._splits_type: torch.dtype = splits.dtype if is_tensor else torch.int32
        self._splits_device: torch.device | None = splits.device if is_tensor else None

    def finish(self, core: Engine, handle: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = core.received_splits(handle, 0)
        received = torch.tensor(rows, dtype=self._splits_type, device=self._splits_device)
        return super().finish(core, handle), received
