"""Send and receive between two ranks of a group: only these two take part.

Messages of one sender, receiver and tag meet in their order; the engine carries out the messages of two ranks, of all
tags, in the order in which both of them have asked. A receive from any source begins when `_any_source` has found a rank
that sends; later receives with its tag wait until then.
"""

from collections import Counter
from typing import Any

from horovod.torch.distributed._any_source import AnySource, LateReceive
from horovod.torch.distributed._calls import Calls
from horovod.torch.distributed._operands import Operand, Taken, operand
from horovod.torch.distributed._work import Works
from hvd_core.frontend.refusals import report_message


class PointToPoint:
    """The messages of one group.

    Args:
        calls: of the group. store: torch's, of the group. rank: of this process in the group.
        ranks: the job's ranks of the members. label: the group's name, equal on its members.
    """

    def __init__(self, calls: Calls, store: Any, rank: int, ranks: list[int], label: str):
        self._calls, self._rank, self._ranks, self._label = calls, rank, ranks, label
        self._counts: Counter[tuple] = Counter()
        self._any = AnySource(calls.core, store, label, rank, len(ranks)) if len(ranks) > 2 else None

    def send(self, tensors: list, dst: int, tag: int) -> Any:
        return self._message(tensors, True, dst, tag)

    def receive(self, tensors: list, src: int, tag: int) -> Any:
        return self._message(tensors, False, src, tag)

    def receive_any(self, tensors: list, tag: int) -> Any:
        if self._any is not None:
            return self._together([self._late(tensor, None, tag) for tensor in tensors], tensors)
        if len(self._ranks) == 1:
            raise ValueError("hvd: a group of one rank has no other rank to receive from.")
        return self.receive(tensors, 1 - self._rank, tag)

    def close(self) -> None:
        if self._any is not None:
            self._any.close()

    def _message(self, tensors: list, sends: bool, other: int, tag: int) -> Any:
        if other == self._rank or not 0 <= other < len(self._ranks):
            raise ValueError(
                f"hvd: rank {self._rank} cannot send to or receive from rank {other} of a group of {len(self._ranks)}."
            )
        late = not sends and self._any is not None and self._any.waits(tag)
        works = [
            self._late(tensor, other, tag) if late else self._one(tensor, sends, other, tag)
            for tensor in tensors
        ]
        return self._together(works, tensors)

    def _together(self, works: list, tensors: list) -> Any:
        return works[0] if len(works) == 1 else Works(works, tensors)

    def _one(self, tensor: Any, sends: bool, other: int, tag: int) -> Any:
        calls = self._calls
        name = self._next_name(sends, other, tag)
        try:
            one, taken = self._taken(tensor, sends)
        except BaseException as error:
            report_message(sends, self._ranks[other], name, calls.process_set, error)
            raise
        work = self._begin(one, taken, sends, other, name)
        if calls.coalesces:
            calls.coalesce(work)
        return work

    def _late(self, tensor: Any, source: int | None, tag: int) -> LateReceive:
        calls = self._calls
        one, taken = self._taken(tensor, False)
        what = "recv from any source" if source is None else f"recv from rank {source}"
        device = None if taken.device is None else taken.device.device
        work = LateReceive([tensor], device, calls.seconds, what)

        def begin(other: int) -> Any:
            return self._begin(one, taken, False, other, self._next_name(False, other, tag))

        self._any.add(work, source, tag, begin)
        if calls.coalesces:
            calls.coalesce(work)
        return work

    def _next_name(self, sends: bool, other: int, tag: int) -> str:
        if self._any is not None:
            number = self._any.next_send(other, tag) if sends else self._any.next_receive(other, tag)
        else:
            number = self._counts[sends, other, tag]
            self._counts[sends, other, tag] = number + 1
        return f"p2p.{self._label}.{tag}.{number}"

    def _taken(self, tensor: Any, sends: bool) -> tuple[Operand, Taken]:
        one = operand(tensor, False, self._calls.process_set, sends)
        flats = [one.flat]
        return one, Taken(self._calls.core, flats, flats, sends, not sends)

    def _begin(self, one: Operand, taken: Taken, sends: bool, other: int, name: str) -> Any:
        work = self._calls.submit(
            "send" if sends else "recv",
            name,
            taken,
            f"send to rank {other}" if sends else f"recv from rank {other}",
            [one.tensor],
            None,
            one.copy_back if one.own and not sends else None,
            alone=True,
            number=self._ranks[other],
        )
        work.source = self._rank if sends else other
        return work
