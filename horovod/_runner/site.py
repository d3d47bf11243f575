"""A site: the ranks of a job on one host. LocalRanks and RemoteRanks derive from `Site`, and report to a `Listener`."""

from __future__ import annotations

import enum
import selectors
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from horovod._runner.functions import FunctionMemory

STREAMS = ("stdout", "stderr")

Event = dict[str, Any]
"""An event of a rank's process, as the supervisor reports it: {"event": "exit", "rank": 0, "code": 1, ...}; or
{"event": "lost", "ranks": [...], "text": ...}."""


class SiteState(enum.Enum):
    """How far a site has come."""

    CONNECTING = "connecting"  # the host has not answered yet
    READY = "ready"  # begin() may be called
    RUNNING = "running"  # the ranks were started
    ABANDONED = "abandoned"  # not needed any more, before the ranks were started
    FAILED = "failed"  # over, and the ranks were never started
    ENDED = "ended"  # over: no process is left, and all output was passed on


@dataclass
class RankSpec:
    """A process to start.

    Attributes:
        env: its variables in addition to the job's.
        function: where it reads a function, and to which it writes the result.
        channel: the variable that names the descriptor of its socket to the launcher; None for no socket.
        notes_calls: the process is a rank, which notes its calls into backends; mpirun notes nothing.
    """

    rank: int
    command: Sequence[str]
    env: Mapping[str, str]
    function: FunctionMemory | None = None
    channel: str | None = None
    notes_calls: bool = True


class Listener(Protocol):
    """Receives the output and the events of a site."""

    def output(self, rank: int, stream: int, data: bytes) -> None:
        """A rank printed `data`; `stream` is an index into STREAMS. Empty data means the end of the stream."""

    def event(self, site: Site, event: Event) -> None:
        """Something has happened to a rank's process."""

    def shell_output(self, site: Site, data: bytes) -> None:
        """The remote shell itself printed `data`. Empty data means its end."""
        return None

    def message(self, rank: int, data: bytes) -> None:
        """A rank with a channel has sent `data` over it."""
        return None


class Site(ABC):
    """The ranks of one host. A member of the event loop; all methods are for its thread, except request(), which a signal
    handler of that thread may call, too.

    Attributes:
        host: the name of the host; None for this one.
        ranks: the numbers of the ranks.
        agent: the agent's process, host and Python, for --verbose.
    """

    def __init__(self, host: str | None, ranks: Sequence[int], state: SiteState) -> None:
        self.host = host
        self.ranks = list(ranks)
        self.state = state
        self.agent = ""

    @property
    def ready(self) -> bool:
        """Whether the host has answered, and is not over."""
        return self.state in (SiteState.READY, SiteState.RUNNING)

    @property
    def begun(self) -> bool:
        """Whether the ranks were started."""
        return self.state in (SiteState.RUNNING, SiteState.ENDED)

    @property
    def over(self) -> bool:
        """Whether no process is left, and all output was passed on."""
        return self.state in (SiteState.FAILED, SiteState.ENDED)

    def _finish(self) -> None:
        self.state = SiteState.ENDED if self.begun else SiteState.FAILED

    @abstractmethod
    def open(self, selector: selectors.BaseSelector, listener: Listener) -> None:
        """Makes the connection to the host. Raises OSError if processes cannot be made."""

    @abstractmethod
    def begin(self) -> None:
        """Starts the ranks of a site that is READY. Raises OSError if processes cannot be made."""

    @abstractmethod
    def request(self, word: str) -> None:
        """Sends a request to the supervisor.

        "stop": SIGTERM, and SIGKILL after a while; the second time SIGKILL immediately. "fail": a rank on another host
        failed. "kill": SIGKILL. "announce": the end of this host is near.
        """

    @abstractmethod
    def send(self, rank: int, data: bytes) -> None:
        """Sends `data`, a few short messages at most, over the channel of a rank. A rank that has ended misses them."""

    @abstractmethod
    def hang_up(self) -> None:
        """Leaves the ranks to the supervisor, which ends them as if this process had died."""

    @abstractmethod
    def abandon(self) -> None:
        """Before begin(): the host is not needed any more. Does not wait."""

    @abstractmethod
    def close(self) -> None:
        """Releases all resources. After begin(): only if the site has ended, or after hang_up()."""

    @abstractmethod
    def due(self) -> float | None:
        """See event_loop.Member."""

    @abstractmethod
    def advance(self, now: float) -> None:
        """See event_loop.Member. Notices the end."""

    def describe_failure(self) -> str:
        """Why the ranks did not start on this host."""
        return ""
