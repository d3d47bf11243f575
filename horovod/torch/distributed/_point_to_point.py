"""Send and receive between two ranks of a group: only these two take part.

Messages of one sender, receiver and tag meet in their order; the engine carries out the messages of two ranks, of all
tags, in the order in which both of them have asked. So a receiver must know the sender: a receive from any source is
possible in a group of two only.
"""

from typing import Any

from horovod.torch.distributed._calls import Calls
from horovod.torch.distributed._operands import Taken, operand
from horovod.torch.distributed._work import Works
from hvd_core._runtime.refusals import report_message


class PointToPoint:
    """The messages of one group.

    Args:
        calls: of the group. rank: of this process in the group. ranks: the job's ranks of the members.
        label: the group's name, equal on its members.
    """

    def __init__(self, calls: Calls, rank: int, ranks: list[int], label: str):
        self._calls, self._rank, self._ranks, self._label = calls, rank, ranks, label
        self._counts: dict[tuple, int] = {}

    def send(self, tensors: list, dst: int, tag: int) -> Any:
        return self._message(tensors, True, dst, tag)

    def receive(self, tensors: list, src: int, tag: int) -> Any:
        return self._message(tensors, False, src, tag)

    def _message(self, tensors: list, sends: bool, other: int, tag: int) -> Any:
        if other == self._rank or not 0 <= other < len(self._ranks):
            raise ValueError(
                f"hvd: rank {self._rank} cannot send to or receive from rank {other} of a group of {len(self._ranks)}."
            )
        works = [self._one(tensor, sends, other, tag) for tensor in tensors]
        return works[0] if len(works) == 1 else Works(works, tensors)

    def _one(self, tensor: Any, sends: bool, other: int, tag: int) -> Any:
        calls, peer = self._calls, self._ranks[other]
        count = self._counts.get((sends, other, tag), 0)
        self._counts[sends, other, tag] = count + 1
        name = f"p2p.{self._label}.{tag}.{count}"
        try:
            one = operand(tensor, False, calls.process_set, sends)
            flats = [one.flat]
            taken = Taken(calls.core, flats, flats, sends, not sends)
        except BaseException as error:
            report_message(sends, peer, name, calls.process_set, error)
            raise
        work = calls.submit(
            "send" if sends else "recv",
            name,
            taken,
            f"send to rank {other}" if sends else f"recv from rank {other}",
            [tensor],
            None,
            one.copy_back if one.own and not sends else None,
            alone=True,
            number=peer,
        )
        work.source = self._rank if sends else other
        if calls.coalesces:
            calls.coalesce(work)
        return work
