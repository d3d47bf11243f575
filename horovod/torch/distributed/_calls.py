"""From a call of a group to a request of the engine: numbers, refusals, limits of time, coalescing.

torch.distributed promises that all ranks of a group make their calls in one order. So the n-th call of a group has the
name "c10d.n" for each operation: ranks that call different operations meet under one name, and all of them hear of it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from horovod.common.basics import UNAVAILABLE, engine
from horovod.torch._submit import BY_ADDRESS
from horovod.torch.distributed._operands import Taken
from horovod.torch.distributed._reductions import NUMBERS_BY_HASH, TELLS_WHO_WAITS
from horovod.torch.distributed._work import Done, Work, Works, seconds_of
from hvd_core._runtime.process_sets import temporary
from hvd_core._runtime.refusals import report

if UNAVAILABLE is None:
    from hvd_core._core import OrderedCalls

# So long the short way of a call waits before it looks at the call's own limit, which takes time to read.
_SOON_SECONDS = 0.1


class Calls:
    """The calls of one group.

    Args:
        number: the engine's number of the group's process set.
        seconds: the limit of time of a call that gives no limit.
    """

    def __init__(self, number: int, seconds: float):
        self.process_set = temporary(number)
        self.number, self.seconds = number, seconds
        self.core = engine()
        self._coalesced: list | None = None
        ordered = OrderedCalls(self.core, number, "c10d.")
        self.next_name: Callable[[], str] = ordered.next_name
        # The number of calls so far. It is equal on all ranks that have made the same calls.
        self.count: Callable[[], int] = ordered.count
        self._allreduce = ordered.allreduce
        self._numbers_by_hash: dict[int, int] = {}

    @contextmanager
    def refusing(self, operation: str, name: str) -> Iterator[None]:
        """A guard around the checks of a call: an exception makes the matching calls of the other ranks fail too."""
        try:
            yield
        except BaseException as error:
            report(operation, name, self.process_set, error)
            raise

    def submit(
        self,
        operation: str,
        name: str,
        taken: Taken | None,
        what: str,
        results: Any,
        opts: Any = None,
        finish: Callable[[], None] | None = None,
        alone: bool = False,
        **how: Any,
    ) -> Any:
        """Hand a call to the engine. Returns its Work; None if the caller waits at once, and the call is over.

        Args:
            operation: of the engine. name: of next_name().
            taken: the tensors; None for a barrier.
            what: the call in words.
            results, finish: as for Work.
            opts: torch's options of the call, with its limit of time, and whether the caller waits at once.
            alone: the caller adds the work to the coalesced ones itself.
            how: number, prescale, splits, received, unit, root of `Engine.ordered`.
        """
        core = self.core
        seconds = seconds_of(getattr(opts, "timeout", None), self.seconds)
        sources, targets = (None, None) if taken is None else (taken.sources or None, taken.targets or None)
        device = None if taken is None else taken.device
        at_once = TELLS_WHO_WAITS and self._coalesced is None and getattr(opts, "asyncOp", True) is False
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
        if self._coalesced is not None and not alone:
            self._coalesced.append(work)
        if at_once:
            work.wait()
            return None
        return work

    def begin_short_way(self) -> None:
        """hvd serves tensors in host memory: reduced_at_once() may do so."""
        self._numbers_by_hash = {} if BY_ADDRESS else NUMBERS_BY_HASH

    def reduced_at_once(self, tensors: Any, opts: Any) -> bool:
        """The short way of the most frequent call: reduce one plain tensor and wait for it. False, and nothing has been
        done, if the call is another one."""
        numbers = self._numbers_by_hash
        if not numbers or opts.asyncOp or self._coalesced is not None or len(tensors) != 1:
            return False
        tensor, number = tensors[0], numbers.get(hash(opts.reduceOp))
        # A negative bit is the one property of a tensor that the engine does not see.
        if number is None or type(tensor) is not torch.Tensor or tensor.is_neg():
            return False
        handle = self._allreduce(tensor, number, _SOON_SECONDS)
        if handle is None:
            return False
        if handle:
            seconds = seconds_of(opts.timeout, self.seconds)
            work = Work(self.core, handle, seconds, "all_reduce", tensors)  # it releases the handle
            if not self.core.wait_for(handle, max(0.0, seconds - _SOON_SECONDS)):
                work.give_up(seconds)
        return True

    @property
    def coalesces(self) -> bool:
        return self._coalesced is not None

    def coalesce(self, work: Any) -> None:
        self._coalesced.append(work)

    def start_coalescing(self) -> None:
        self._coalesced = []

    def end_coalescing(self) -> Any:
        works, self._coalesced = self._coalesced or [], None
        return Works(works) if works else Done()


def together(works: Sequence[Any], results: Any) -> Any:
    """The works of one call as one; None if all are over."""
    under_way = [work for work in works if work is not None]
    return Works(under_way, results) if under_way else None
