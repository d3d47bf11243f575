"""Send and receive between two ranks of a group: only these two take part.

A message is a broadcast in a process set of its two ranks, which they make at their first message and keep for the job. A
group of two ranks is such a set itself. Messages of one sender, receiver and tag meet in their order; each pair of ranks
carries out the messages of all tags in the order in which both of them have asked. A receive from any source is not
possible, because a rank takes part in a set's operation or does not.
"""

import threading
from collections.abc import Callable
from typing import Any

from horovod.torch.distributed._calls import Calls
from horovod.torch.distributed._operands import Taken, operand
from horovod.torch.distributed._work import Failure, Work, Works, seconds_of
from hvd_core.process_set import temporary


class Pair:
    """The process set of two ranks of the job, in the making at first."""

    def __init__(self, core: Any, ranks: list[int]):
        self._core, self.ranks = core, ranks
        self.number: int | None = None
        self.failure: BaseException | None = None
        self._lock = threading.Lock()
        self._waiting: list[Callable[[], None]] = []
        self._handle = core.add_members_set(ranks, "pair")
        threading.Thread(target=self._await, name="hvd-pair", daemon=True).start()

    def _await(self) -> None:
        number, failure = None, None
        try:
            self._core.wait(self._handle)
            number = self._core.process_set_of(self._handle)
        except BaseException as error:
            failure = error
        self._core.release(self._handle)
        with self._lock:
            self.number, self.failure = number, failure
            waiting, self._waiting = self._waiting, []
            for begin in waiting:
                begin()

    def when_made(self, begin: Callable[[], None]) -> None:
        """Call `begin` when the set is made, or cannot be made; in the order of these calls. Now, if it is over."""
        with self._lock:
            if self.number is None and self.failure is None:
                self._waiting.append(begin)
            else:
                begin()


_pairs: dict[tuple, Pair] = {}
_pairs_lock = threading.Lock()


def pair_of(core: Any, ranks: list[int]) -> Pair:
    key = (id(core), *ranks)
    with _pairs_lock:
        for old in [other for other in _pairs if other[0] != id(core)]:
            del _pairs[old]  # of a job that has ended
        if key not in _pairs:
            _pairs[key] = Pair(core, ranks)
        return _pairs[key]


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
        return self._message(tensors, self._rank, dst, tag)

    def receive(self, tensors: list, src: int, tag: int) -> Any:
        return self._message(tensors, src, self._rank, tag)

    def _message(self, tensors: list, src: int, dst: int, tag: int) -> Any:
        sends, other = src == self._rank, dst if src == self._rank else src
        if other == self._rank or not 0 <= other < len(self._ranks):
            raise ValueError(
                f"hvd: rank {self._rank} cannot send to or receive from rank {other} of a group of {len(self._ranks)}."
            )
        works = [self._one(tensor, sends, src, dst, tag) for tensor in tensors]
        return works[0] if len(works) == 1 else Works(works, tensors)

    def _one(self, tensor: Any, sends: bool, src: int, dst: int, tag: int) -> Any:
        calls = self._calls
        count = self._counts.get((src, dst, tag), 0)
        self._counts[src, dst, tag] = count + 1
        name = f"p2p.{self._label}.{src}-{dst}.{tag}.{count}"
        what = f"send to rank {dst}" if sends else f"recv from rank {src}"
        if len(self._ranks) == 2:
            work = self._submit(calls.number, name, tensor, sends, src, what)
        else:
            pair = pair_of(calls.core, sorted((self._ranks[src], self._ranks[dst])))
            if pair.number is not None:
                work = self._submit(pair.number, name, tensor, sends, src, what)
            else:
                work = Message(calls, what, tensor)
                pair.when_made(
                    lambda: work.begin(
                        pair.failure, lambda: self._submit(pair.number, name, tensor, sends, src, what)
                    )
                )
        work.source = src
        if calls.coalesces:
            calls.coalesce(work)
        return work

    def _submit(self, number: int, name: str, tensor: Any, sends: bool, src: int, what: str) -> Work:
        calls = self._calls
        with calls.refusing("broadcast", name, temporary(number)):
            one = operand(tensor, False, calls.process_set, sends)
            flats = [one.flat]
            taken = Taken(flats, flats)
            finish = one.copy_back if one.own and not sends else None
        return calls.submit(
            "broadcast",
            name,
            taken,
            what,
            [tensor],
            None,
            finish,
            number,
            alone=True,
            number=self._ranks[src],
        )


class Message(Works):
    """The Work of a message whose pair is in the making."""

    def __init__(self, calls: Calls, what: str, tensor: Any):
        super().__init__([], [tensor])
        self._calls, self._what = calls, what
        self._begun, self._refusal = threading.Event(), None
        self.source = -1

    def begin(self, failure: BaseException | None, submit: Callable[[], Work]) -> None:
        try:
            if failure is not None:
                raise failure
            self._works = [submit()]
        except BaseException as error:
            self._refusal = error
        self._begun.set()

    def _await(self, timeout: Any) -> None:
        seconds = seconds_of(timeout, self._calls.seconds)
        if not self._begun.wait(seconds):
            raise Failure(
                f"Timed out waiting {round(seconds * 1000)}ms for {self._what} to complete: the other rank has sent or "
                "received nothing yet"
            )
        if self._refusal is not None:
            raise self._refusal

    def wait(self, timeout: Any = None) -> bool:
        self._await(timeout)
        return super().wait(timeout)

    synchronize = block_current_stream = wait

    def is_completed(self) -> bool:
        return self._begun.is_set() and (self._refusal is not None or super().is_completed())

    def is_success(self) -> bool:
        return self.is_completed() and self._refusal is None and super().is_success()

    def exception(self) -> BaseException | None:
        return self._refusal or super().exception()

    def get_future(self) -> Any:
        self._await(None)
        return super().get_future()

    def source_rank(self) -> int:
        return self.source

    _source_rank = source_rank
