"""The tensors of a call in the form that the engine takes, and the results that are made of what it returns.

The engine takes a tensor in host memory unchanged if its type has DLPack's C exchange API, and as an address otherwise
(older torch, or HOROVOD_TORCH_NO_DLPACK_API=1). Tensors on devices: `_devices`; on devices that no backend serves:
`_staging`. Any thread that holds the GIL.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.dlpack import from_dlpack

from horovod.common.basics import engine
from horovod.common.exports import _basics
from horovod.common.process_sets import ProcessSet
from horovod.torch import _devices, _staging
from horovod.torch._devices import reference
from horovod.torch._dtypes import AS_BYTES, MOVABLE, REDUCIBLE, as_sent, why_not
from hvd_core._runtime.process_sets import why_no_number

if TYPE_CHECKING:
    from hvd_core._core import Engine

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
    return not are_plain((tensor,), allowed, process_set) and reject(tensor, allowed, process_set)


def are_plain(tensors: Sequence[Any], allowed: frozenset[torch.dtype], process_set: Any) -> bool:
    """Whether nothing is wrong with the tensors, all are in host memory, and none is sent as another type."""
    try:
        for tensor in tensors:
            if not (
                tensor.dtype in allowed and tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg()
            ):
                return False
        return process_set.process_set_id is not None
    except (AttributeError, RuntimeError):  # no tensor, or a layout without strides
        return False


def check_all(tensors: Sequence[Any], allowed: frozenset[torch.dtype], process_set: Any) -> bool:
    """Whether the tensors of a call are on a device: `check` for each, all on the same one."""
    on_device = False
    for tensor in tensors:
        if check(tensor, allowed, process_set):
            on_device = True
    if on_device and (text := _devices.several_devices(tensors)):
        raise ValueError(text)
    return on_device


def dense(tensor: Any) -> Any:
    """A tensor that is only sent, as one that is contiguous. Any other value unchanged, for the checks to refuse."""
    if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided and not tensor.is_contiguous():
        return tensor.contiguous()
    return tensor


def empty_like(tensor: Any) -> Any:
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
        plain: the engine takes the tensors unchanged.
        root_rank: of a broadcast, which reads the tensors of this rank alone.

    Attributes:
        is_staged: the operation begins when the tensors have been copied to host memory.
        needs_finish: the results have to be fetched from the engine, or the stream of a device has to wait for them.
        splits: of an alltoall, whose result is a pair: the type and the device of the second tensor, which says how many
            rows came from each rank.

    Raises:
        ValueError: see reject().
    """

    # What most calls have. To set them in each call would cost more.
    _device: _devices.Submitted | _staging.Staged | None = None
    _types: list[Any] | None = None
    is_staged = False
    splits: tuple[torch.dtype, torch.device | None] | None = None

    def __init__(
        self,
        tensors: list[Any],
        outputs: list[Any] | None,
        allowed: frozenset[torch.dtype],
        process_set: Any,
        grouped: bool,
        plain: bool,
        root_rank: Any,
    ):
        self._grouped, self._outputs, self._count = grouped, outputs, len(tensors)
        self.needs_finish = outputs is None
        sources: Sequence[Any] = tensors
        targets: Sequence[Any] | None = outputs
        if not plain:
            sources, targets = self._converted(tensors, outputs, allowed, process_set, root_rank)
        self.sources: Any = sources if grouped else sources[0]
        self.targets: Any = targets if grouped or targets is None else targets[0]

    def _converted(
        self,
        tensors: list[Any],
        outputs: list[Any] | None,
        allowed: frozenset[torch.dtype],
        process_set: Any,
        root_rank: Any,
    ) -> tuple[Sequence[Any], Sequence[Any] | None]:
        """The sources and the targets of tensors that are checked, sent as bytes, or on a device."""
        sent, received = tensors, outputs
        types = [getattr(tensor, "dtype", None) for tensor in tensors]
        if allowed is MOVABLE and not AS_BYTES.isdisjoint(types):
            self._types = types
            sent = [as_sent(tensor) for tensor in tensors]
            if outputs is not None:
                received = sent if outputs is tensors else [as_sent(tensor) for tensor in outputs]
        if check_all(sent, allowed, process_set):
            is_root = root_rank is not None and _basics.rank() == root_rank
            reads, writes = root_rank is None or is_root, not (is_root and outputs is tensors)
            device = self._device = _staging.submitted(sent, received, engine(), reads, writes)
            self.is_staged, self.needs_finish = device.deferred, True
            return device.sources, None if outputs is None else device.targets
        sources = in_host_form(sent)
        if received is None or received is sent:
            return sources, None if received is None else sources
        return sources, in_host_form(received)

    def begin(self, core: Engine, handle: int, wait: bool) -> None:
        """Let the submitted operation begin, if it has not. The engine keeps the tensors from here on."""
        self.sources = self.targets = None
        if self._device is not None:
            self._device.begin(core, handle, wait)

    def poll(self, core: Engine, handle: int) -> bool:
        """Whether the results are complete."""
        return core.poll(handle) if self._device is None else self._device.poll(core, handle)

    def finish(self, core: Engine, handle: int) -> Any:
        """The results of an operation that is done, or on a device enqueued: then the current stream waits for it."""
        results: Sequence[torch.Tensor] = ()
        if self._device is not None:
            results = self._device.all(core, handle)
        elif self._outputs is None and not self._grouped:
            results = [from_dlpack(core.output(handle, 0))]
        elif self._outputs is None:
            results = [from_dlpack(core.output(handle, i)) for i in range(self._count)]
        if self._outputs is not None:
            return self._outputs if self._grouped else self._outputs[0]
        if self._types is not None:  # a type that is sent as bytes is returned as bytes
            results = [each.view(dtype) for each, dtype in zip(results, self._types)]
        if self.splits is None:
            return results if self._grouped else results[0]
        dtype, device = self.splits
        return results[0], torch.tensor(core.received_splits(handle, 0), dtype=dtype, device=device)
