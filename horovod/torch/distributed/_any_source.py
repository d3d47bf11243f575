"""Receives from any source of one group.

The engine carries out a message when both ranks have asked, so the receiver must know who sends. A rank that receives
from any source for the first time says so by a key in torch's store. Who sends to it looks for that key, at first often,
later once a second, and from then on writes the number of its messages to the store, one key for each tag. The receiver
compares these numbers with those of its receives: where a sender is ahead, a message waits that no receive will take.

Ranks that never receive from any source cost their senders that look only. In a group of two the source is known.
"""

import atexit
import functools
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, NoReturn

from torch.futures import Future

from horovod.torch.distributed._work import Failure, _Base, seconds_of

# How long a sender waits between two looks for receives from any source: at the beginning, and at most.
_LOOK_SECONDS, _LONGEST_LOOK_SECONDS = 0.005, 1.0
# Between two looks for a sender. With many ranks a look takes longer, and the pause is as long.
_MATCH_SECONDS = 0.001
# A lost connection to the store may be the first sign that the job has ended.
_END_SECONDS = 5.0

_open: weakref.WeakSet = weakref.WeakSet()


class LateReceive(_Base):
    """The Work of a receive that cannot begin at once. Any thread.

    Args:
        tensors: what result() and the future return. device: theirs; None in host memory.
        seconds: the limit of wait() where the caller gives no limit. what: the call in words.
    """

    def __init__(self, tensors: list, device: Any, seconds: float, what: str):
        super().__init__()
        self._tensors, self._seconds, self._what = tensors, seconds, what
        self.devices = [] if device is None else [device]
        self._begun = threading.Event()  # or failed
        self._work: Any = None
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._future: Future | None = None

    def begin(self, begin: Callable[[], Any]) -> None:
        """Take the Work that begin() returns, or the error that it raises. Called once."""
        try:
            self._work = begin()
        except Exception as error:
            self._failure = error
        with self._lock:
            self._begun.set()
            future = self._future
        if future is not None:
            self._complete(future)

    def wait(self, timeout: Any = None) -> bool:
        seconds = seconds_of(timeout, self._seconds)
        end = time.monotonic() + seconds
        if not self._begun.wait(seconds):
            raise Failure(
                f"hvd: Timed out waiting {round(seconds * 1000)}ms for {self._what} to complete: no rank of the "
                "group has sent a message that waits for a receive"
            )
        if self._failure is not None:
            raise self._failure
        return self._work.wait(timedelta(seconds=max(0.001, end - time.monotonic())))

    synchronize = block_current_stream = wait

    def is_completed(self) -> bool:
        return self._begun.is_set() and (self._failure is not None or self._work.is_completed())

    def is_success(self) -> bool:
        return self._begun.is_set() and self._failure is None and self._work.is_success()

    def exception(self) -> BaseException | None:
        return self._failure if self._work is None else self._work.exception()

    def result(self) -> Any:
        return self._tensors

    def source_rank(self) -> int:
        """The rank, within the group, that has sent the data; -1 while it is not known."""
        return -1 if self._work is None else self._work.source_rank()

    _source_rank = source_rank

    def get_future(self) -> Future:
        with self._lock:
            if self._future is not None:
                return self._future
            self._future = future = Future(devices=self.devices)
            begun = self._begun.is_set()
        if begun:
            self._complete(future)
        return future

    get_future_result = get_future

    def _complete(self, future: Future) -> None:
        if self._failure is not None:
            future.set_exception(self._failure)
            return

        def hand_on(done: Future) -> None:
            try:
                done.value()
            except RuntimeError as error:
                future.set_exception(error)
            else:
                future.set_result(self._tensors)

        self._work.get_future().add_done_callback(hand_on)


class AnySource:
    """What one rank of a group of three or more knows of the others' messages.

    Args:
        core: the engine. store: torch's store of the group. label: the group's name.
        rank, size: of this process in the group, of the group.
    """

    def __init__(self, core: Any, store: Any, label: str, rank: int, size: int):
        self._core, self._store = core, store
        self._prefix = f"hvd/messages/{label}/"
        self._rank, self._size = rank, size
        self._lock = threading.Lock()
        self._sent: defaultdict[tuple[int, int], int] = defaultdict(int)  # (receiver, tag)
        self._received: defaultdict[tuple[int, int], int] = defaultdict(int)  # (sender, tag)
        self._readers: dict[
            int, Any
        ] = {}  # receivers of which it is known that they read numbers -> the store
        # By tag, (work, source or None, begin) of the receives that have not begun.
        self._late: dict[int, deque] = {}
        self._reads_in: Any = None  # the store, if this rank reads numbers
        self._next_sender = 0
        self._closed = threading.Event()
        self._looks: threading.Thread | None = None
        self._matches: threading.Thread | None = None
        _open.add(self)

    def next_send(self, receiver: int, tag: int) -> int:
        """The number of a message that this rank is about to send."""
        with self._lock:
            number = self._sent[receiver, tag]
            self._sent[receiver, tag] = number + 1
            if receiver in self._readers:
                self._publish(receiver, tag)
            elif self._looks is None:
                self._looks = self._started(self._look)
            return number

    def next_receive(self, sender: int, tag: int) -> int:
        """The number of the message that a receive takes, which is about to begin."""
        with self._lock:
            number = self._received[sender, tag]
            self._received[sender, tag] = number + 1
            return number

    def waits(self, tag: int) -> bool:
        """Whether a receive with this tag must wait for earlier ones, one of which is from any source."""
        with self._lock:
            return tag in self._late

    def add(self, work: LateReceive, source: int | None, tag: int, begin: Callable[[int], Any]) -> None:
        """Begin a receive by begin(source) when its source is known: None for any. Returns at once."""
        with self._lock:
            if self._closed.is_set():
                raise RuntimeError("hvd: the group has been destroyed")
            self._late.setdefault(tag, deque()).append((work, source, begin))
            if self._matches is None:
                self._matches = self._started(self._match)

    def close(self) -> None:
        """End the threads. Receives that have not begun fail. A later group of this name finds no keys of this one."""
        self._closed.set()
        for thread in (self._looks, self._matches):
            if thread is not None:
                thread.join(_END_SECONDS)  # it may wait for a store that has ended
        written = [
            (self._readers[r], self._key(self._rank, r, tag)) for r, tag in self._sent if r in self._readers
        ]
        if self._reads_in is not None:
            written.append((self._reads_in, self._reads_key(self._rank)))
        self._readers, self._reads_in = {}, None
        for store, key in written:
            with suppress(RuntimeError):  # the store has ended
                store.delete_key(key)

    def _started(self, function: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=function, name="hvd-any-source", daemon=True)
        thread.start()
        return thread

    def _client(self) -> Any:
        # A client of TCPStore does one thing at a time, and the program's may wait for a key that a rank sets when it
        # has this rank's message. Older versions of PyTorch have no clone().
        return self._store.clone() if hasattr(self._store, "clone") else self._store

    def _key(self, sender: int, receiver: int, tag: int) -> str:
        return f"{self._prefix}{sender}/{receiver}/{tag}"

    def _reads_key(self, receiver: int) -> str:
        return f"{self._prefix}{receiver}"

    def _publish(self, receiver: int, tag: int) -> None:
        with suppress(RuntimeError):  # the store has ended: who receives from any source finds that out too
            self._readers[receiver].set(self._key(self._rank, receiver, tag), str(self._sent[receiver, tag]))

    def _look(self) -> None:
        """Find the receivers that read numbers."""
        pause = _LOOK_SECONDS
        try:
            store = self._client()
            while True:
                with self._lock:
                    receivers = {receiver for receiver, _ in self._sent} - self._readers.keys()
                for receiver in receivers:
                    if store.check([self._reads_key(receiver)]):
                        with self._lock:
                            self._readers[receiver] = store
                            for other, tag in self._sent:
                                if other == receiver:
                                    self._publish(receiver, tag)
                if self._closed.wait(pause) or self._core.stopped:
                    return
                pause = min(2 * pause, _LONGEST_LOOK_SECONDS)
        except RuntimeError:
            return  # the store has ended

    def _match(self) -> None:
        """Begin the late receives, those of one tag in their order, until none is left."""
        try:
            if self._reads_in is None:
                store = self._client()
                store.set(self._reads_key(self._rank), "1")
                self._reads_in = store
            store = self._reads_in
            while heads := self._heads():
                looked_at = time.monotonic()
                begun = [self._begin_head(store, tag, *head) for tag, head in heads]
                pause = max(_MATCH_SECONDS, time.monotonic() - looked_at)
                if not any(begun) and (self._closed.wait(pause) or self._core.stopped):
                    return self._fail(RuntimeError("hvd: the group has been destroyed"))
        except Exception as error:
            until = time.monotonic() + _END_SECONDS
            while not (self._core.stopped or self._closed.wait(_LOOK_SECONDS)) and time.monotonic() < until:
                pass
            self._fail(error)

    def _heads(self) -> list:
        with self._lock:
            if not self._late:
                self._matches = None
            return [(tag, queue[0]) for tag, queue in self._late.items()]

    def _begin_head(
        self, store: Any, tag: int, work: LateReceive, source: int | None, begin: Callable[[int], Any]
    ) -> bool:
        if source is None:
            source = self._sender(store, tag)
        if source is None:
            return False
        work.begin(functools.partial(begin, source))
        with self._lock:
            self._late[tag].popleft()
            if not self._late[tag]:
                del self._late[tag]
        return True

    def _sender(self, store: Any, tag: int) -> int | None:
        """A rank whose message waits. Each has its turn."""
        for offset in range(self._size):
            sender = (self._next_sender + offset) % self._size
            key = self._key(sender, self._rank, tag)
            sent = int(store.get(key)) if sender != self._rank and store.check([key]) else 0
            if sent > self._received[sender, tag]:
                self._next_sender = sender + 1
                return sender
        return None

    def _fail(self, error: Exception) -> None:
        with self._lock:
            late, self._late, self._matches = self._late, {}, None
        for queue in late.values():
            for work, source, begin in queue:
                # A job that has ended says why to every call.
                other = source if source is not None else (self._rank + 1) % self._size
                work.begin(functools.partial(*((begin, other) if self._core.stopped else (_raise, error))))


def _raise(error: Exception) -> NoReturn:
    raise error


def _close_all() -> None:
    # Before the interpreter ends: its threads must not return from C++ then.
    for each in list(_open):
        each.close()


atexit.register(_close_all)
