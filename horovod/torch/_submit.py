"""From torch tensors to requests of the engine: checks, handles, waiting.

Every operation of ``horovod.torch`` goes through here. Used by the modules of this package only, from any
thread that holds the GIL (backward hooks run on autograd's threads). A tensor in host memory goes to
the engine as it is where its type has DLPack's C exchange API, and as an address otherwise (older torch, or
HOROVOD_TORCH_NO_DLPACK_API=1). Tensors on devices: `_devices`.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NoReturn

import torch
from torch.utils.dlpack import from_dlpack

from horovod.common.basics import UNAVAILABLE, HorovodBasics, runtime
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import ProcessSet
from horovod.torch import _devices
from horovod.torch._devices import reference
from horovod.torch._dtypes import REDUCIBLE, why_not

if UNAVAILABLE is None:
    from hvd_core.runtime import engine
else:

    def engine():
        """Stands in where the engine cannot be loaded: raises ImportError with the reason."""
        return runtime().engine()


_basics = HorovodBasics()

Average = _basics.Average
Sum = _basics.Sum
Adasum = _basics.Adasum
Min = _basics.Min
Max = _basics.Max
Product = _basics.Product

# handle -> (inputs, outputs, fetch). It keeps the tensors alive while the engine reads and writes their
# memory. `fetch(engine, handle)` makes the outputs where the engine allocates them, or orders the caller's
# stream behind them where they are on a device; None where they are there already.
_handle_map: dict[int, tuple[Any, Any, Callable | None]] = {}

_abandoned: list[tuple] = []

# The numbers of hvd/backend_abi.h; Adasum is the engine's own.
_WIRE_OPS = {Average: 4, Sum: 0, Min: 2, Max: 3, Product: 1, Adasum: 100}

# Read once: asking per call would cost more than the answer saves.
BY_ADDRESS = (
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
    or os.environ.get("HOROVOD_TORCH_NO_DLPACK_API", "0") == "1"
)


def resolve_op(
    op: int | None,
    average: Any,
    operation: str = "allreduce",
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> int:
    """The reduce op that the arguments `op` and `average` mean together.

    `average` is deprecated but programs also pass a name in its place: anything truthy means Average. `operation`,
    `name` and `process_set`: the call that fails for the others as well if it fails here.

    Raises:
        ValueError: both are given.
    """
    if average is None:
        return Average if op is None else op
    if op is not None:
        text = "The op parameter supersedes average. Please provide only one of them."
        if process_set is not None:
            poison(None if name is None else f"{operation}.{name}", text, process_set, "allreduce")
        raise ValueError(text)
    import warnings

    warnings.warn(
        "Parameter `average` has been replaced with `op`; use op=hvd.Average or op=hvd.Sum.",
        DeprecationWarning,
        stacklevel=3,
    )
    return Average if average else Sum


def wire_op(op: int, name: str | None, process_set: ProcessSet, operation: str) -> int:
    """The engine's number of a reduce op, for values that are not in the table of the fast path.

    Raises:
        ValueError: no reduce op.
    """
    try:
        return _WIRE_OPS[op]
    except (KeyError, TypeError):
        text = f"Unknown reduce op {op!r}. Use hvd.Average, Sum, Min, Max, Product or Adasum."
    refuse(text, name, process_set, operation)


def poison(name: str | None, text: str, process_set: ProcessSet, operation: str) -> None:
    """Report that a call of `operation` failed here, so that the others' matching call fails instead of stalling.

    Without a name it is the next unnamed call of that operation.
    """
    set_id = getattr(process_set, "process_set_id", None)
    if set_id is not None and _basics.is_initialized():
        with suppress(HorovodInternalError):  # the job has ended: nobody waits
            engine().poison(name, text, set_id, operation)


def refuse(text: str, name: str | None, process_set: ProcessSet, operation: str) -> NoReturn:
    """Raise ValueError(text) here, and let the matching call fail on the other ranks.

    Raises ValueError about the missing init() instead before init().
    """
    poison(name, text, process_set, operation)
    raise ValueError(text)


def reject(
    tensor: Any, allowed: frozenset, name: str | None, process_set: ProcessSet, operation: str
) -> bool:
    """Explain why `tensor` cannot be communicated. Called once a check has failed; as `check` if all is well.

    Raises:
        ValueError: not a tensor, a type or layout that is not supported, not contiguous, or on a device that
            no backend serves; no process set.
    """
    engine()  # Before init() the missing init() is the better message.
    if not isinstance(process_set, ProcessSet):
        raise ValueError(
            f"process_set must be an hvd.ProcessSet, but found {type(process_set).__name__}: {process_set!r:.80}. "
            "Leave it out for all ranks."
        )
    if not isinstance(tensor, torch.Tensor):
        text = f"A torch.Tensor is required, but found {type(tensor).__name__}: {tensor!r:.80}."
    elif tensor.layout is not torch.strided or tensor.dtype not in allowed:
        text = why_not(tensor, allowed is REDUCIBLE)
    elif not tensor.is_cpu and not _devices.is_served(tensor, engine()):
        text = engine().why_not_served(tensor.device.type)
    elif not tensor.is_contiguous():
        text = "Tensor is required to be contiguous."
    elif tensor.is_neg():
        # Its memory holds the values with the other sign.
        text = (
            "Tensor has the negative bit set, as the imaginary part of a conjugated tensor has. "
            "Pass tensor.resolve_neg()."
        )
    elif process_set.process_set_id is None:
        text = f"Process set provided does not exist, or has not been registered: {process_set}."
    else:
        return not tensor.is_cpu
    refuse(text, name, process_set, operation)


def check(tensor: Any, allowed: frozenset, name: str | None, process_set: ProcessSet, operation: str) -> bool:
    """Whether `tensor` is on a device, rather than in host memory.

    Raises ValueError unless it is contiguous, of an allowed type, on a device that is served, and the set known.
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
    return reject(tensor, allowed, name, process_set, operation)


def check_all(
    tensors: list, allowed: frozenset, name: str | None, process_set: ProcessSet, operation: str
) -> bool:
    """Whether the tensors of a group are on a device: `check` for each, all on the same one."""
    on_device = [check(tensor, allowed, name, process_set, operation) for tensor in tensors]
    if any(on_device):
        text = _devices.several_devices(tensors)
        if text:
            refuse(text, name, process_set, operation)
        return True
    return False


def listed(tensors: Any, name: str | None, process_set: ProcessSet, operation: str) -> list:
    """The tensors of a group as a list of our own.

    Raises:
        ValueError: there are none, or `tensors` is a tensor or nothing to iterate over.
    """
    members = listed_if_any(tensors, name, process_set, operation)
    if members:
        return members
    engine()
    refuse(
        "A grouped operation needs at least one tensor, but the list is empty.", name, process_set, operation
    )


def listed_if_any(tensors: Any, name: str | None, process_set: ProcessSet, operation: str) -> list:
    """As `listed`, of what may be empty. An iterator is used up by it."""
    if isinstance(tensors, torch.Tensor) or not isinstance(tensors, Iterable):
        engine()
        text = f"A grouped operation takes a list of tensors, but found {type(tensors).__name__}."
        refuse(text, name, process_set, operation)
    try:
        return list(tensors)
    except Exception as error:  # of a generator
        poison(name, f"{type(error).__name__}: {error}", process_set, operation)
        raise


def compress_all(
    compression: Any, tensors: list, name: str | None, process_set: ProcessSet, operation: str
) -> list[tuple]:
    """What is sent for the tensors, with what undoes it; a failure fails the others' matching call as well.

    Raises:
        ValueError: one is no tensor. Whatever the compressor raises.
    """
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            reject(tensor, REDUCIBLE, name, process_set, operation)
    try:
        return [compression.compress(tensor) for tensor in tensors]
    except Exception as error:
        poison(name, f"{type(error).__name__}: {error}", process_set, operation)
        raise


def operands(tensors: list[torch.Tensor]) -> list:
    """What the engine is given for a list of tensors."""
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
        handle: what an ``..._async`` function returned.

    Raises:
        ValueError: there is no such operation, or it has been synchronized already.
    """
    if handle not in _handle_map:
        raise ValueError(f"Handle {handle} was not created or has been cleared.")
    return engine().poll(handle)


def synchronize(handle: int) -> Any:
    """Wait for an asynchronous operation and return its output. A handle can be synchronized once.

    The GIL is released while waiting, and Ctrl-C works. On a device the output is ready for what is given to the
    current stream from now on; whether the work itself is done, poll() says.

    Args:
        handle: what an ``..._async`` function returned (the callable of sparse_allreduce_async included).

    Returns:
        The output tensor, a list of tensors for a grouped operation, None for an unknown handle.

    Raises:
        HorovodInternalError: the operation failed, here or on another rank, or the job was shut down.
    """
    entry = _handle_map.get(handle)
    if entry is None:
        return handle() if callable(handle) else None
    core = engine()
    try:
        core.wait(handle)
        fetch = entry[2]
        output = entry[1] if fetch is None else fetch(core, handle)
    except HorovodInternalError:
        forget(core, handle)
        raise
    # Not in a finally clause: after Ctrl-C the operation still runs and its tensors must stay alive.
    _handle_map.pop(handle, None)
    core.release(handle)
    return output


def settle(core, handle: int) -> None:
    """Let the current stream come after an operation on a device that `core` has enqueued. Otherwise nothing."""
    fetch = _handle_map[handle][2]
    if fetch is not None:
        fetch(core, handle)


def keep_for_ever(tensors: tuple) -> None:
    """Keep tensors alive whose operation was left by Ctrl-C: the engine may still write to their memory."""
    _abandoned.append(tensors)


def forget(core, handle: int) -> None:
    """Drop a finished handle and the references to its tensors."""
    if _handle_map.pop(handle, None) is not None:
        core.release(handle)


def is_current(core) -> bool:
    """Whether `core` is the engine that runs now. Handles of an earlier one mean nothing to it."""
    return _basics.is_initialized() and engine() is core


def forget_finished(handles: Iterable[int]) -> None:
    """Drop those of the handles that are finished. The engine still uses the tensors of the others."""
    core = engine()
    for handle in handles:
        if handle in _handle_map and core.poll(handle):
            forget(core, handle)
