"""The store as one init() uses it: keys with a prefix of their own, and waits that end if another rank fails or dies.

A rank that is in init() leaves a last will with the store: if its connection ends before release(), the store publishes
that the rank has ended. A launcher that holds the store adds the ends of processes that have not come to init()
(horovod/_runner). Both wake every waiting rank immediately, so nothing here polls.

Used on the thread that runs init(). Every wait ends at the session's deadline.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hvd_core._base.logs import printable
from hvd_core._base.sockets import BootstrapError, BootstrapTimeout, Deadline, RankLost
from hvd_core._bootstrap.launchers.identity import Identity
from hvd_core._bootstrap.launchers.process import LauncherProcess
from hvd_core._bootstrap.store import Gathered, StoreClient, read_gathered
from hvd_core._bootstrap.store.job_members import MembersDisagree, members_from_json

if TYPE_CHECKING:
    import socket

    from hvd_core._bootstrap.links import RankListener

# How often a wait for something that is no key checks whether another rank has failed. The check makes no system call
# but one look at the store's connection.
_CHECK_SECONDS = 0.05
# How often a waiting rank calls look().
_LOOK_SECONDS = 0.5

OnTimeout = Callable[[], str]


def secondary_failure_key(launcher_rank: int) -> str:
    """The counter by which a launcher's rank reports that it fails because of another rank."""
    return f"hvd/secondary-failure/{launcher_rank}"


class Session:
    """The store under a prefix that belongs to this init() (``epoch``) alone.

    ``silence_s``: seconds without any message after which the host at the other end of a link counts as lost.
    """

    def __init__(
        self,
        store: StoreClient,
        secret: bytes,
        rank: int,
        size: int,
        epoch: int,
        deadline: Deadline,
        silence_s: float = 30.0,
    ) -> None:
        self.store, self.secret, self.rank, self.size, self.epoch = store, secret, rank, size, epoch
        self.deadline = deadline
        self.silence_s = silence_s
        self._prefix = f"hvd/{epoch}/"
        # Not under the prefix: they stay when it is cleared.
        self._failure, self._go = f"hvd/failure/{epoch}", f"hvd/go/{epoch}"
        # Not the rank: two processes may claim the same rank, and each must see the other's failure.
        self._process = secrets.token_hex(8)
        self.launcher: LauncherProcess | None = None  # if it is watched
        self.look: Callable[[], object] | None = (
            None  # called from time to time while this rank waits; raises to end the wait
        )
        # If given, look() is not called before this key (without prefix) is in the store.
        self.look_key: str | None = None
        self._look_at = 0.0
        self._members: dict[int, int] = {}  # launcher's rank -> rank
        self._launcher_reports_ends = False
        self._ends_read = 0
        self._launcher_rank = rank

    def attend(self, identity: Identity, host: str, launcher_reports_ends: bool) -> None:
        """Leaves the last will. ``identity``: of this process; ``host``: the name of its host; ``launcher_reports_ends``:
        the store is the launcher's, which publishes the ends of processes."""
        self._launcher_rank = identity.launcher_rank
        text = f"rank {self.rank} (host {host}, pid {os.getpid()}) ended during init()"
        last_will = {
            "rank": self.rank,
            "process": self._process,
            "text": text,
            "attempts": None,
            "ended": True,
        }
        self.store.set_last_will(self._failure, json.dumps(last_will).encode())
        self._members = {other: i for i, other in enumerate(identity.members or range(self.size))}
        self._launcher_reports_ends = launcher_reports_ends

    def all_have_come(self) -> None:
        """From now on the end of a process counts only if it is still in init()."""
        self._launcher_reports_ends = False

    def release(self) -> None:
        """Takes the last will back: init() has ended here, or its failure is known to the other ranks."""
        with contextlib.suppress(BootstrapError):
            self.store.set_last_will("", b"")

    def put(self, key: str, value: Any) -> None:
        """Publishes ``value`` (any JSON value)."""
        self.store.set(self._prefix + key, json.dumps(value).encode())

    def count(self, key: str) -> int:
        """Adds one to a counter and returns it."""
        return self.store.add(self._prefix + key, 1)

    def gather(
        self,
        key: str,
        common: bytes = b"",
        own: bytes = b"",
        label: str = "",
        members: Sequence[int] | None = None,
    ) -> bool:
        """Adds this rank's part, or that of ``members``, to a value that all ranks put together (store.py). False if
        such a part is there already, from another process."""
        return self.store.gather(
            self._prefix + key, self.size, (self.rank,) if members is None else members, common, own, label
        )

    def gathered(self, key: str, on_timeout: OnTimeout | None = None, label: str = "") -> Gathered:
        """Waits until all ranks have added their parts, and returns the Gathered of ``label``. Raises as wait() does."""
        return read_gathered(self.gathered_bytes(key, on_timeout, label))

    def gathered_bytes(self, key: str, on_timeout: OnTimeout | None = None, label: str = "") -> bytes:
        """As gathered(), but the bytes that read_gathered() takes."""
        return self._wait(self._prefix + key + (label and f":{label}"), key, on_timeout)

    def all_may_go(self, store_stays: bool) -> None:
        """Publishes that no key of this init() is needed any more. Deletes the keys from a store that stays."""
        self.store.set(self._go, b"")
        if store_stays:
            self.store.clear(self._prefix)

    def wait_to_go(self, on_timeout: OnTimeout) -> None:
        """Returns after all_may_go(). Raises as wait() does."""
        self._wait(self._go, "go", on_timeout)

    def peek(self, key: str) -> Any:
        """The value of ``key``, or None if it does not exist."""
        try:
            return json.loads(self.store.get(self._prefix + key, 0))
        except BootstrapTimeout:
            return None

    def wait(self, key: str, on_timeout: OnTimeout | None = None) -> Any:
        """Waits until ``key`` exists and returns its value.

        Raises RankLost if another rank ends first, BootstrapError if it fails, BootstrapTimeout with the text that
        ``on_timeout()`` returns if the deadline passes.
        """
        return json.loads(self._wait(self._prefix + key, key, on_timeout))

    def _wait(self, whole_key: str, key: str, on_timeout: OnTimeout | None) -> bytes:
        while True:
            value = self.read(whole_key, min(_LOOK_SECONDS, self.deadline.left()))
            if value is not None:
                return value
            self._call_look()
            if self.deadline.passed():
                raise self.timed_out(on_timeout() if on_timeout else f"no rank published {key!r}")

    def timed_out(self, what: str) -> BootstrapTimeout:
        """The error of a wait that the deadline has ended. ``what`` did not happen."""
        return BootstrapTimeout(f"{what} within {self.deadline.seconds:g} s")

    def read(self, whole_key: str, seconds: float) -> bytes | None:
        """The value (bytes) of a key without this session's prefix, or None after ``seconds``. Raises as wait() does."""
        until = time.monotonic() + seconds
        while True:
            answer = self.store.wait_any((whole_key, *self._alarms()), max(0.0, until - time.monotonic()))
            if answer is None:
                return None
            which, value = answer
            if which == 0:
                return value
            self._take_alarm(which - 1, value)

    def check(self) -> None:
        """Raises RankLost if another rank has ended, BootstrapError if it has failed, or what look() raises."""
        while (answer := self.store.wait_any(self._alarms(), 0)) is not None:
            self._take_alarm(*answer)
        if time.monotonic() >= self._look_at:
            self._call_look()

    def accept(self, listener: RankListener, rank: int, what: str) -> tuple[socket.socket, bytes]:
        """The socket of ``rank`` and its key, when it has connected. Raises as wait() does; the message of
        BootstrapTimeout begins with ``what``."""
        found, _ = self.accept_or_read(listener, rank, what, None)
        assert found is not None
        return found

    def accept_or_read(
        self, listener: RankListener, rank: int, what: str, key: str | None
    ) -> tuple[tuple[socket.socket, bytes] | None, Any]:
        """As accept(), but a value of ``key`` ends the wait too: (connection, None) or (None, value)."""
        while True:
            connection = listener.wait_for(rank, min(_CHECK_SECONDS, self.deadline.left()))
            if connection is not None:
                return connection, None
            if key is None:
                self.check()
            elif (value := self.read(self._prefix + key, 0)) is not None:
                return None, json.loads(value)
            if self.deadline.passed():
                raise self.timed_out(f"{what} to rank {self.rank}")

    def _call_look(self) -> None:
        self._look_at = time.monotonic() + _LOOK_SECONDS
        if self.launcher is not None and self.launcher.has_ended():
            raise RankLost(self.launcher.text)
        if self.look is not None and self.look_key is None:
            self.look()

    def _check_has_come(self, launched: int, text: str) -> None:
        """Raises RankLost, with what happened to the process of the launcher's rank ``launched``, unless that rank is in
        init(): its last will says more, and immediately."""
        rank = self._members.get(launched)
        if (
            rank is None
            or rank == self.rank
            or self.peek(f"hello/{rank}") is not None
            or self._is_there(self._go)
        ):
            return
        self._report_secondary_failure()
        raise RankLost(
            f"rank {rank} {text} before it called init(). All ranks must call it. Its own output may tell why it ended."
        )

    def _alarms(self) -> tuple[str, ...]:
        ended = f"hvd/ended/{self._ends_read}" if self._launcher_reports_ends else None
        look = None if self.look is None else self.look_key
        return tuple(key for key in (self._failure, ended, look) if key is not None)

    def _take_alarm(self, which: int, data: bytes) -> None:
        key = self._alarms()[which]
        if key == self.look_key:
            self.look_key = None  # from now on look() is called
            return self._call_look()
        value = json.loads(data)
        value["text"] = printable(value["text"])
        if key != self._failure:
            self._ends_read += 1
            return self._check_has_come(value["rank"], value["text"])
        self._report_secondary_failure()
        if value["attempts"] is not None:
            attempts = [(members_from_json(members), count) for members, count in value["attempts"]]
            raise MembersDisagree(value["text"], attempts)
        if value.get("ended"):
            raise RankLost(value["text"])
        raise BootstrapError(f"rank {value['rank']} gave up: {value['text']}")

    def _report_secondary_failure(self) -> None:
        """Reports to the launcher that this rank fails because another one has failed before."""
        with contextlib.suppress(BootstrapError):
            self.store.add(secondary_failure_key(self._launcher_rank), 1)

    def fail(self, error: BaseException) -> None:
        """Publishes the failure of this rank. The other ranks see the first failure only."""
        with contextlib.suppress(OSError, RuntimeError):
            if self._first_to_fail():
                failure: dict[str, Any] = {
                    "rank": self.rank,
                    "process": self._process,
                    "text": str(error) or type(error).__name__,
                }
                failure["ended"] = isinstance(error, RankLost)
                failure["attempts"] = error.attempts if isinstance(error, MembersDisagree) else None
                self.store.set(self._failure, json.dumps(failure).encode())

    def _first_to_fail(self) -> bool:
        if self.store.add(f"hvd/failures/{self.epoch}", 1) != 1:
            return False
        return not self._is_there(self._failure)  # it may be the last will of a rank that ended before

    def _is_there(self, whole_key: str) -> bool:
        try:
            self.store.get(whole_key, 0)
        except BootstrapTimeout:
            return False
        return True

    def absent(self, key: str) -> list[int]:
        """The ranks that have added no part to the gathered value of ``key`` yet."""
        return self.store.absent(self._prefix + key, self.size)
