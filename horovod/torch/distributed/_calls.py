"""From a call of a group to a request of the engine: numbers, refusals, limits of time, coalescing.

torch.distributed promises that all ranks of a group make their calls in one order. So the n-th call of a group has the
name "c10d.n" for each operation: ranks that call different operations meet under one name, and all of them hear of it.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from horovod.common.basics import engine
from horovod.torch._submit import BY_ADDRESS
from horovod.torch.distributed._operands import Taken, is_plain
from horovod.torch.distributed._reductions import PLAIN_OPS
from horovod.torch.distributed._work import Done, Work, Works, seconds_of
from hvd_core.frontend.refusals import report
from hvd_core.process_set import temporary

NOTHING: tuple = ()


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
        self._count, self._lock = 0, threading.Lock()
        self._coalesced: list | None = None

    @contextmanager
    def refusing(self, operation: str, name: str) -> Iterator[None]:
        """A guard around the checks of a call: an exception makes the matching calls of the other ranks fail too."""
        try:
            yield
        except BaseException as error:
            report(operation, name, self.process_set, error)
            raise

    def next_name(self) -> str:
        with self._lock:
            self._count += 1
            return f"c10d.{self._count - 1}"

    def count(self) -> int:
        """The number of calls so far. It is equal on all ranks that have made the same calls."""
        return self._count

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
            how: number, prescale, splits, received, unit of `Engine.ordered`.
        """
        core = self.core
        seconds = seconds_of(getattr(opts, "timeout", None), self.seconds)
        sources, targets = (None, None) if taken is None else (taken.sources or None, taken.targets or None)
        device = None if taken is None else taken.device
        at_once = self._coalesced is None and getattr(opts, "asyncOp", True) is False
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

    def reduced_at_once(self, name: str, tensors: Any, opts: Any) -> bool:
        """The short way of the most frequent call: reduce one plain tensor and wait for it. False, and nothing has been
        done, if the call is another one."""
        if self._coalesced is not None or len(tensors) != 1 or getattr(opts, "asyncOp", True):
            return False
        tensor, number = tensors[0], PLAIN_OPS.get(getattr(opts.reduceOp, "op", None))
        if number is None or BY_ADDRESS or not is_plain(tensor):
            return False
        flat = tensor if tensor.dim() == 1 else tensor.view(-1)
        seconds = seconds_of(opts.timeout, self.seconds)
        core = self.core
        handle = core.ordered(
            "allreduce", name, self.number, flat, flat, number, 1.0, NOTHING, NOTHING, -1, seconds
        )
        if handle:
            Work(core, handle, seconds, "all_reduce", tensors).give_up(seconds)
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
