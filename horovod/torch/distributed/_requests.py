"""From a call of a group to a request of the engine: reduce ops, operands, the numbers of calls, refusals, timeouts,
coalescing.

torch.distributed promises that all ranks of a group make their calls in one order. So the n-th call of a group has the
name "c10d.n" for each operation: calls of different operations match under one name, and fail on all ranks.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed import AllreduceOptions, ReduceOp

from horovod.common.basics import UNAVAILABLE, engine
from horovod.torch import _devices, _staging
from horovod.torch._dtypes import DTYPE_NUMBERS, MOVABLE
from horovod.torch._operand import BY_ADDRESS, check, in_host_form
from horovod.torch.distributed._work import Work, Works, seconds_of
from hvd_core._frontend import operations
from hvd_core._frontend.operations import ENGINE_NUMBERS
from hvd_core._runtime.failures import report_failure
from hvd_core._runtime.process_sets import ProcessSet, temporary

_OPS = {
    "SUM": ENGINE_NUMBERS[operations.Sum],
    "AVG": ENGINE_NUMBERS[operations.Average],
    "MIN": ENGINE_NUMBERS[operations.Min],
    "MAX": ENGINE_NUMBERS[operations.Max],
    "PRODUCT": ENGINE_NUMBERS[operations.Product],
    "PREMUL_SUM": ENGINE_NUMBERS[operations.Sum],
}


def _kind(op: Any) -> Any:
    return getattr(op, "op", op)  # a ReduceOp, or its RedOpType


_NUMBERS = {
    _kind(getattr(ReduceOp, name)): number for name, number in _OPS.items() if hasattr(ReduceOp, name)
}
SUM = _OPS["SUM"]


def reduction_of(options: Any) -> tuple[int, float]:
    """The engine's number of the reduce op in a call's options, and the factor that multiplies the tensors before.

    Raises:
        NotImplementedError: BAND, BOR or BXOR, or a factor that is a tensor.
    """
    if options is None:
        return SUM, 1.0
    op = getattr(options, "reduceOp", options)
    kind = _kind(op)
    try:
        number = _NUMBERS[kind]
    except (KeyError, TypeError):
        raise NotImplementedError(
            f"hvd: reductions by {getattr(kind, 'name', kind)} are not supported. Use SUM, AVG, MIN, MAX or PRODUCT."
        ) from None
    if kind != _PREMUL:  # each access makes an object
        return number, 1.0
    factor = op.__getstate__()[1]
    if not isinstance(factor, (int, float)):
        raise NotImplementedError("hvd: PREMUL_SUM takes a number as its factor, not a tensor.")
    return number, float(factor)


_PREMUL = _kind(getattr(ReduceOp, "PREMUL_SUM", None))


# Whether the options of every call have `asyncOp`, which is false if the caller waits; torch then takes None for a call
# that has ended. Older versions, such as 2.7, have it for some calls only, and wait for what every call returns.
OPTIONS_SAY_WAIT = hasattr(AllreduceOptions(), "asyncOp")
# hash(options.reduceOp) -> the engine's number, of the ops that need no factor. A hash costs less than a comparison of
# ops. Empty where it is a hash of the object.
NUMBERS_BY_HASH: dict[int, int] = {}
if OPTIONS_SAY_WAIT and hash(AllreduceOptions().reduceOp) == hash(ReduceOp(ReduceOp.SUM)):
    NUMBERS_BY_HASH = {hash(ReduceOp(kind)): number for kind, number in _NUMBERS.items() if kind != _PREMUL}


# Tensors of torch.distributed in the form that the engine takes: dense, real, of a type that it knows.
#
# The engine writes to the memory of the tensors that it gets. So a tensor that it can take as it is costs no copy;
# another one is copied, and a result is copied back when the operation has completed. Pure functions; any thread.

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

    def __init__(
        self,
        core: Any,
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
        sent: bool = True,
        received: bool = True,
    ):
        first = (inputs or outputs)[0]
        self.sources: Sequence[Any]
        self.targets: Sequence[Any]
        # The operation on a device; None in host memory.
        self.device: _devices.Submitted | _staging.Staged | None = None
        if first.is_cpu:
            self.sources = in_host_form(inputs)
            self.targets = self.sources if outputs is inputs else in_host_form(outputs)
            return
        if text := _devices.several_devices([*inputs, *outputs]):
            raise ValueError(f"hvd: {text}")
        # Results that are not those of an operation in place must not be written to the copies of the inputs.
        self.device = _staging.submitted(inputs, outputs, core, sent, received, outputs is not inputs)
        self.sources, self.targets = self.device.sources, self.device.targets


if UNAVAILABLE is None:
    from hvd_core._core import OrderedCalls

# So long the short way of a call waits before it looks at the call's own limit, which takes time to read.
_SOON_SECONDS = 0.1


class Calls:
    """The calls of one group.

    Args:
        number: the engine's number of the group's process set.
        seconds: the timeout of a call that gives none.
    """

    def __init__(self, number: int, seconds: float):
        self.process_set = temporary(number)
        self.number, self.seconds = number, seconds
        self.core = engine()
        self.coalesced: list[Any] | None = None  # the works since start_coalescing()
        ordered = OrderedCalls(self.core, number, "c10d.")
        self.next_name: Callable[[], str] = ordered.next_name
        # The number of calls so far. It is equal on all ranks that have made the same calls.
        self.count: Callable[[], int] = ordered.count
        self._try_allreduce = ordered.try_allreduce
        self._numbers_by_hash: dict[int, int] = {}

    def refusing(self, operation: str, name: str) -> report_failure:
        """A guard around the checks of a call: an exception makes the matching calls of the other ranks fail too."""
        return report_failure(operation, name, self.process_set)

    def submit(
        self,
        operation: str,
        name: str,
        taken: Taken | None,
        what: str,
        results: Any,
        opts: Any = None,
        finish: Callable[[], None] | None = None,
        **how: Any,
    ) -> Any:
        """Hand a call to the engine. Returns its Work; None if the caller waits immediately, and the call has ended.

        Args:
            operation: of the engine. name: of next_name().
            taken: the tensors; None for a barrier.
            what: the call in words.
            results, finish: as for Work.
            opts: torch's options of the call, with its timeout, and whether the caller waits immediately.
            how: number, prescale, splits, received, unit, root of `Engine.ordered`.
        """
        core = self.core
        seconds = seconds_of(getattr(opts, "timeout", None), self.seconds)
        sources, targets = (None, None) if taken is None else (taken.sources or None, taken.targets or None)
        device = None if taken is None else taken.device
        at_once = OPTIONS_SAY_WAIT and self.coalesced is None and getattr(opts, "asyncOp", True) is False
        waits = at_once and device is None
        handle = core.ordered(
            operation,
            name,
            self.number,
            sources,
            targets,
            wait_s=seconds if waits else -1.0,
            **how,
        )
        if waits and handle != 0:
            Work(core, handle, seconds, what, results).give_up(seconds)
        if waits:
            if finish is not None:
                finish()
            return None
        if device is not None:
            device.begin(core, handle, False)
        work = Work(core, handle, seconds, what, results, finish, device)
        if self.coalesced is not None:
            self.coalesced.append(work)
        if at_once:
            work.wait()
            return None
        return work

    def enable_short_way(self) -> None:
        """hvd serves tensors in host memory: reduced_at_once() may do so."""
        self._numbers_by_hash = {} if BY_ADDRESS else NUMBERS_BY_HASH

    def reduced_at_once(self, tensors: Any, opts: Any) -> bool:
        """The short way of the most frequent call: reduce one plain tensor and wait for it. False, and nothing has been
        done, if the call is another one."""
        numbers = self._numbers_by_hash
        if not numbers or opts.asyncOp or self.coalesced is not None or len(tensors) != 1:
            return False
        tensor, number = tensors[0], numbers.get(hash(opts.reduceOp))
        if number is None or type(tensor) is not torch.Tensor:
            return False
        handle = self._try_allreduce(tensor, number, _SOON_SECONDS)
        if handle is None:
            return False
        if handle:
            seconds = seconds_of(opts.timeout, self.seconds)
            work = Work(self.core, handle, seconds, "all_reduce", tensors)  # it releases the handle
            if not self.core.wait_for(handle, max(0.0, seconds - _SOON_SECONDS)):
                work.give_up(seconds)
        return True

    def start_coalescing(self) -> None:
        self.coalesced = []

    def end_coalescing(self) -> Any:
        works, self.coalesced = self.coalesced or [], None
        return Works(works)


def together(works: Sequence[Any], results: Any) -> Any:
    """The works of one call as one; None if all have ended."""
    under_way = [work for work in works if work is not None]
    return Works(under_way, results) if under_way else None
