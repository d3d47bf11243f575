"""From torch tensors to requests of the engine: checks, handles, waiting.

Every operation of ``horovod.torch`` goes through here. Used by the modules of this package only, from any
thread that holds the GIL (backward hooks run on autograd's threads). The engine takes a tensor in host memory
unchanged if its type has DLPack's C exchange API, and as an address otherwise (older torch, or
HOROVOD_TORCH_NO_DLPACK_API=1). Tensors on devices: `_devices`.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from horovod.common.arguments import BOTH_GIVEN, op_from
from horovod.common.basics import call_after_the_job, engine
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch import (
    _devices,
    _dtypes,  # noqa: F401 (_memory registers the type of tensors)
    _staging,
)
from horovod.torch._devices import reference
from horovod.torch._dtypes import REDUCIBLE, why_not
from hvd_core._frontend import groups
from hvd_core._frontend.reductions import engine_number
from hvd_core._runtime.process_sets import why_no_number
from hvd_core._runtime.refusals import report


class Fetched:
    """An output that needs a call: `fetch(engine, handle)` returns the outputs that the engine has allocated, or makes
    the caller's stream wait for outputs on a device."""

    __slots__ = ("fetch",)

    def __init__(self, fetch: Callable):
        self.fetch = fetch


# handle -> output, or Fetched. The engine holds on to the tensors while it reads and writes their memory. The output
# itself and no tuple with it: Python's garbage collector would run more often.
_handle_map: dict[int, Any] = {}
_UNKNOWN = object()

call_after_the_job(_handle_map.clear)

# Read once: asking per call would cost more than the answer saves.
BY_ADDRESS = (
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
    or os.environ.get("HOROVOD_TORCH_NO_DLPACK_API", "0") == "1"
)


def nothing(operation: str, prefix: str, name: Any, process_set: ProcessSet) -> list:
    """The result of a grouped operation without tensors. Nothing is sent. If the groups of other ranks have tensors,
    their calls fail."""
    report(operation, name, process_set, f"{prefix}() was called there with an empty list.", prefix)
    return []


class UnsupportedOpError(ValueError, NotImplementedError):
    """An operation does not have this reduce op: a ValueError, and the NotImplementedError (a RuntimeError) that programs
    catch."""


def number_of_op(op: Any) -> int:
    """The engine's number of a reduce op. Raises UnsupportedOpError if `op` is no reduce op."""
    try:
        return engine_number(op)
    except ValueError as error:
        raise UnsupportedOpError(str(error)) from None


def resolve_op(op: int | None, average: Any, stacklevel: int = 4) -> int:
    """The reduce op that the arguments `op` and `average` of an operation mean together. `stacklevel` as for op_from().

    Raises:
        ValueError: both are given.
    """
    if op is not None and average is not None:
        raise ValueError(BOTH_GIVEN)
    return op_from(op, average, stacklevel=stacklevel)


def reject(tensor: Any, allowed: frozenset, process_set: ProcessSet) -> bool:
    """Raise the error that says why `tensor` cannot be communicated. Called when a check has failed; returns the result
    of `check` if nothing is wrong.

    Raises:
        ValueError: not a tensor, a type or layout that is not supported, not contiguous, on a device that no backend
            serves, or the process set is not registered.
    """
    core = engine()
    if not isinstance(process_set, ProcessSet):
        text = why_no_number(process_set)
    elif not isinstance(tensor, torch.Tensor):
        text = f"A torch.Tensor is required, but found {type(tensor).__name__}: {tensor!r:.80}."
    elif tensor.layout is not torch.strided or tensor.dtype not in allowed:
        text = why_not(tensor, allowed is REDUCIBLE)
    elif not tensor.is_cpu and not _devices.is_served(tensor, core) and (refusal := _staging.why_not(tensor)):
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


def check(tensor: Any, allowed: frozenset, process_set: ProcessSet) -> bool:
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


def check_all(tensors: list, allowed: frozenset, process_set: ProcessSet) -> bool:
    """Whether the tensors of a group are on a device: `check` for each, all on the same one."""
    on_device = [check(tensor, allowed, process_set) for tensor in tensors]
    if any(on_device):
        text = _devices.several_devices(tensors)
        if text:
            raise ValueError(text)
        return True
    return False


def some_members_of(tensors: Any) -> list:
    """The tensors of a group as a new list. Raises ValueError for an empty list, a tensor, or no list at all."""
    return groups.some_members_of(tensors, torch.Tensor)


def members_of(tensors: Any) -> list:
    """As some_members_of(), for a list that may be empty."""
    return groups.members_of(tensors, torch.Tensor)


def compress_all(compression: Any, tensors: list) -> list[tuple]:
    """(tensor to send, context for `decompress`) of each tensor.

    Raises:
        ValueError: a value in `tensors` is not a tensor. The compressor may raise other exceptions.
    """
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            reject(tensor, REDUCIBLE, global_process_set)
    return [compression.compress(tensor) for tensor in tensors]


def dense(tensor: Any) -> Any:
    """A tensor that is only sent, as one that is contiguous. Any other value unchanged, for the checks to refuse."""
    if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided and not tensor.is_contiguous():
        return tensor.contiguous()
    return tensor


def keep(handle: int, output: Any, fetch: Callable | None) -> None:
    """Keep the output of an operation for synchronize(), or the function that fetches it."""
    _handle_map[handle] = output if fetch is None else Fetched(fetch)


def operands(tensors: list[torch.Tensor]) -> list:
    """The form in which the engine takes a list of tensors in host memory."""
    return [reference(t) for t in tensors] if BY_ADDRESS else tensors


def fetch_one(core, handle: int) -> torch.Tensor:
    """The output that the engine has allocated for `handle`."""
    return from_dlpack(core.output(handle, 0))


def fetch_many(count: int) -> Callable:
    """A function that fetches the `count` outputs of a group."""
    return lambda core, handle: [from_dlpack(core.output(handle, i)) for i in range(count)]


def poll(handle: int) -> bool:
    """Whether an asynchronous operation is complete, so that `synchronize` would not block.

    Args:
        handle: the result of an ``..._async`` function.

    Raises:
        ValueError: there is no such operation, or it has been synchronized already.
    """
    if handle not in _handle_map:
        raise ValueError(f"Handle {handle} was not created or has been cleared.")
    staged = _staging.STAGED.get(handle) if _staging.STAGED else None
    return engine().poll(handle) if staged is None else staged.poll(engine(), handle)


def synchronize(handle: int) -> Any:
    """Wait for an asynchronous operation and return its output. A handle can be synchronized once.

    The GIL is released while waiting, and Ctrl-C works. On a device the output is ready for work that is given to the
    current stream from now on; poll() says whether the work itself is done.

    Args:
        handle: the result of an ``..._async`` function, sparse_allreduce_async included.

    Returns:
        The output tensor, a list of tensors for a grouped operation, None for an unknown handle.

    Raises:
        HorovodInternalError: the operation failed, here or on another rank, or the job was shut down.
    """
    output = _handle_map.get(handle, _UNKNOWN)
    if output is _UNKNOWN:
        return handle() if callable(handle) else None
    core = engine()
    if output.__class__ is not Fetched:
        core.finish(handle, _handle_map)
        return output
    # Not in a finally clause: after Ctrl-C the operation is still pending.
    try:
        core.wait(handle)
        output = output.fetch(core, handle)
    except HorovodInternalError:
        forget(core, handle)
        raise
    forget(core, handle)
    return output


def settle(core, handle: int) -> None:
    """Let the current stream wait for an operation on a device that `core` has enqueued. In host memory, do nothing."""
    output = _handle_map[handle]
    if output.__class__ is Fetched:
        output.fetch(core, handle)


def settle_each(core, handles: list[int]) -> None:
    """Wait for operations on devices, and settle() each of them. Raises HorovodInternalError if one has failed, when all
    are over."""
    if any(handle in _staging.STAGED for handle in handles):
        return _staging.wait_for_each(core, handles, settle)
    core.wait_many(handles)
    for handle in handles:
        settle(core, handle)


def forget(core, handle: int) -> None:
    """Delete a finished handle and the references to its tensors."""
    if _handle_map.pop(handle, _UNKNOWN) is not _UNKNOWN:
        core.release(handle)


def forget_each(core, handles: list[int]) -> None:
    """forget() for each of the handles. The engine first: after Ctrl-C between the two, the rest is found and deleted."""
    core.release_each(handles)
    for handle in handles:
        _handle_map.pop(handle, None)


def forget_finished(handles: Iterable[int]) -> None:
    """Delete those of the handles that are finished. The engine still uses the tensors of the others."""
    core = engine()
    for handle in handles:
        if handle in _handle_map and core.poll(handle):
            forget(core, handle)
