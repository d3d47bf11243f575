"""How ranks end: exit codes, last calls, the order of failures, and the exception for the caller of a job.

A code is that of a process as its supervisor reports it: the exit code, or minus the number of the signal that ended the
process. Any thread, unless a class says more.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvd_core._bootstrap.store import StoreClient


def signal_of(code: int) -> int | None:
    """The number of the signal that has ended a process; None if it has ended by itself."""
    return -code if code < 0 else None


def shell_code(code: int) -> int:
    """The code as a shell and horovodrun show it: 128 + the number of a signal."""
    return 128 - code if code < 0 else code


def describe_code(code: int) -> str:
    """The end of a process in words."""
    if code < 0:
        return f"killed by {_name(-code)}"
    if 128 < code <= 128 + signal.SIGRTMAX:
        return f"exit code {code}; a shell exits so when {_name(code - 128)} has killed its program"
    return f"exit code {code}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


class EndedRanks:
    """The launcher's part in naming the end of a rank, over the job's store.

    It reports to the ranks that wait in init() which processes have ended (hvd_core/_bootstrap/store/session.py reads
    that). It learns which ranks failed only because another one had failed before: these secondary failures are not
    named as the cause of the job's end. On the thread of Job.run(); the store's server is in this process, so calls
    return immediately.

    Args:
        address: of the store. A store that cannot be reached is ignored: the job continues without it.
        secret: of the job.
        encrypted: as for StoreClient.
    """

    def __init__(self, address: str, secret: bytes, encrypted: bool | None = None) -> None:
        self._address, self._secret, self._encrypted = address, secret, encrypted
        self._store: StoreClient | None = None
        self._reported = 0

    def report(self, rank: int, code: int, host: str | None) -> None:
        """Publishes that the process of `rank` has ended with `code`."""
        with contextlib.suppress(OSError, RuntimeError):
            text = f"ended ({f'host {host}, ' if host else ''}{describe_code(code)})"
            value = json.dumps({"rank": rank, "text": text}).encode()
            self._connected().set(f"hvd/ended/{self._reported}", value)
            self._reported += 1

    def secondary_failures(self, ranks: Iterable[int]) -> set[int]:
        """Those of `ranks` that reported another rank's failure before their own."""
        found: set[int] = set()
        with contextlib.suppress(OSError, RuntimeError):
            for rank in ranks:
                if self._connected().add(f"hvd/secondary-failure/{rank}", 0) > 0:
                    found.add(rank)
        return found

    def close(self) -> None:
        """Closes the connection."""
        if self._store is not None:
            self._store.close()

    def _connected(self) -> StoreClient:
        if self._store is None:
            # Imported late: the parser, --version and wrong arguments need no store.
            from hvd_core._bootstrap.store import StoreClient

            self._store = StoreClient(self._address, self._secret, encrypted=self._encrypted)
        return self._store


@dataclass(frozen=True)
class RankFailure:
    """Why a rank failed. `code`: its exit code; `text`: with its traceback; `error`: its exception, if it can be pickled;
    `secondary`: it failed because another rank had failed."""

    rank: int
    code: int
    text: str
    error: BaseException | None = None
    secondary: bool = False

    def exception(self, host: str | None, python: str, what: str = "rank", more: str = "") -> RuntimeError:
        """What the caller of the job gets. `host`, `python`: of the rank, a host of None is not shown; `what` its number
        counts; `more`: further lines."""
        where = "" if host is None else f" on host {host}"
        text = f"{what} {self.rank}{where} failed:\n{self.text.rstrip()}"
        if isinstance(self.error, ModuleNotFoundError):
            text += (
                f"\nThe Python there, {python}, has no module {self.error.name!r}. Install it on the executors, or send "
                f"it: SparkContext.addPyFile(), or cloudpickle.register_pickle_by_value({self.error.name}) before."
                if what == "rank" and host is not None
                else f"\nThe Python there, {python}, has no module {self.error.name!r}."
            )
        shown = RuntimeError(text + (f"\n{more}" if more else ""))
        shown.__cause__ = self.error
        return shown


def failure_of(rank: int, code: int, data: bytes | None, secondary: bool = False) -> RankFailure:
    """The failure of a rank that ended with `code`. `data`: what it has left, pickled."""
    trace, error = "", None
    if data:
        # A result is there, too, when the process failed after the function had returned.
        ok, *rest = pickle.loads(data)
        if not ok:
            trace, error = rest
    text = trace or f"The process ended without a Python exception: {describe_code(code)}.\n"
    return RankFailure(rank, code, text, error, secondary)


_BYTES = 4096


class LastCall:
    """What a rank did in backends when its process ended: memory that the launcher or its agent makes for each rank
    on its host, and reads after the rank has failed. The rank's side, and the meaning, are in
    hvd_core/_runtime/crash_reports.py. Raises OSError if the process has no descriptors left."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("hvd-last-call")

    def variables(self) -> dict[str, str]:
        """What the rank must find in its environment. The rank inherits no descriptor, and neither do its children."""
        return {"HOROVOD_LAST_CALL": f"/proc/{os.getpid()}/fd/{self._descriptor}"}

    def content(self) -> str:
        """The content as a text for an event; "" if the rank has noted nothing."""
        found = os.pread(self._descriptor, _BYTES, 0)
        return zlib.compress(found).hex() if found.strip(b"\0") else ""

    def close(self) -> None:
        """Closes the descriptor."""
        os.close(self._descriptor)


def about_end(event: Mapping[str, Any]) -> str:
    """How a rank's process has ended, by its event "exit": ``for lack of memory, it seems: ... (cgroup limit 512 MiB)``,
    or ``in the call collective of backend 'x' (allreduce, 4096 bytes)``; "" if neither is known."""
    if event.get("out_of_memory"):
        return f"for lack of memory, it seems: the kernel has killed a process of its group ({event['out_of_memory']})"
    if not event.get("inside"):
        return ""
    from hvd_core._runtime.crash_reports import describe_last_call

    killed = signal_of(event["code"]) is not None
    return describe_last_call(zlib.decompress(bytes.fromhex(event["inside"])), killed=killed)
