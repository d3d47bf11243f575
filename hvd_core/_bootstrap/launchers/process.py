"""The processes of the job on this host: the one that started the ranks, and whether it or another rank has ended.

The launcher's process tells two jobs on one machine apart, also where the launcher gives the job no name of its own. If
it
has ended, nothing ends this rank any more, so it is watched: by the session during init(), by the engine afterwards
(hvd_core/engine/base/process.h). A plain program is never watched, nor one that another parent has taken over
before init(). Reads /proc; any thread.
"""

from __future__ import annotations

import hashlib
import os
import select
import time
from collections.abc import Mapping, Sequence

from hvd_core._base.processes import process_stat
from hvd_core._base.sockets import RankLost
from hvd_core._bootstrap import launchers
from hvd_core._bootstrap.launchers.identity import Identity


def launcher_pid(variable: str) -> tuple[int, int]:
    """(pid, start time) of the nearest ancestor that is a known launcher or does not carry the environment variable
    ``variable``. The start time is 0 if the process cannot be read."""
    pid = os.getppid()
    while pid > 1:
        stat = process_stat(pid)
        if stat is None:
            break
        if launchers.is_launcher_name(stat.name) or not _carries(pid, variable):
            return pid, stat.started
        pid = stat.parent
    return pid, 0


def private_facts(variable: str) -> str:
    """A digest of what only this user, and root, can read about the launcher's process; "" if it cannot.

    It is equal on all ranks of this host. The addresses in the auxiliary vector are random and stay the same.
    """
    pid, _ = launcher_pid(variable)
    if pid <= 1:
        return ""  # each rank may be in a container of its own, whose first process is not the others'
    try:
        with open(f"/proc/{pid}/auxv", "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except (PermissionError, FileNotFoundError, ProcessLookupError):
        return ""


def _carries(pid: int, variable: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return any(entry.startswith(variable.encode() + b"=") for entry in file.read().split(b"\0"))
    except OSError:
        return False


class LauncherProcess:
    """``fd``: a pidfd, which the caller of watch() closes; ``text``: the sentence that reports the end of the process."""

    def __init__(self, fd: int, text: str) -> None:
        self.fd, self.text = fd, text

    def has_ended(self) -> bool:
        """Whether the process is gone. Takes one system call."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return bool(poll.poll(0))


def watch(identity: Identity, host: str, environ: Mapping[str, str] = os.environ) -> LauncherProcess | None:
    """The launcher's process of this rank; None where no launcher is known or it cannot be watched."""
    whole = identity.whole
    launcher = launchers.named(whole.launcher)
    if launcher is None or whole.variable is None or not launcher.is_watched:
        return None
    pid, started = launcher_pid(whole.variable)
    stat = process_stat(pid) if pid > 1 else None
    if stat is None or not (launchers.is_launcher_name(stat.name) or launcher.is_agent(stat.name, environ)):
        return None
    try:
        fd = os.pidfd_open(pid)
    except (OSError, AttributeError):  # it has ended; or the kernel forbids it
        return None
    now = process_stat(pid)
    if now is None or now.started != started:
        os.close(fd)  # another process has got its number
        return None
    shown = launcher.shown_process(stat.name)
    return LauncherProcess(
        fd, f"the launcher of rank {identity.rank} (host {host}) is gone: {shown}, pid {pid}, has ended"
    )


# ------------------------------------------------------------------------------------------ liveness of the other ranks
# mpirun and torchrun stay silent about a rank that ends with exit code 0 before init(), and the others would wait for the
# start timeout. The ranks of one host are started at nearly the same time, and each process carries its rank in its
# environment: so a rank whose number no process carries has ended. A program may overwrite its environment later, so a
# process that was seen once counts until it ends. Used on the thread that runs init().

# Ranks are started one after the other. Seconds after the start of this process by which the others have started too:
# a rank that was never seen counts as ended only after that time.
_STARTED_SECONDS = 1.5
_STARTED_SECONDS_PER_RANK = 0.05
# A rank counts as gone if it is missing in two looks that are so far apart.
_BETWEEN_SECONDS = 0.3
# With many ranks the looks get rarer, since each rank looks at all of them.
_SECONDS_PER_RANK = 0.01

# (pid, start time)
_Process = tuple[int, int]


class PeerLiveness:
    """``identity``: of this process. missing() finds nothing where it cannot know: another launcher, several hosts."""

    def __init__(self, identity: Identity) -> None:
        whole = identity.whole
        self._variable = (whole.variable or "").encode() + b"="
        self._job = [part.encode() for part in whole.job]
        self._me = whole.rank
        members: Sequence[int] = range(whole.size or 0) if identity.members is None else identity.members
        self._others = [rank for rank in members if rank != whole.rank]
        self._seen: dict[int, set[_Process]] = {rank: set() for rank in self._others}
        self._missing_since: dict[int, float] = {}
        self._next = 0.0
        launcher = launchers.named(whole.launcher)
        self._knows = (
            launcher is not None
            and not launcher.watches_ranks
            and whole.size is not None
            and whole.local_size == whole.size
        )
        if self._knows:
            self._launcher, _ = launcher_pid(whole.variable or "")
            self._knows = _is_launcher(self._launcher)
            self._all_started = (
                time.monotonic()
                - _age_of_this_process()
                + _STARTED_SECONDS
                + _STARTED_SECONDS_PER_RANK * len(self._others)
            )

    def missing(self) -> list[int]:
        """The launcher's ranks that have no process on this host any more, to be called from time to time."""
        now = time.monotonic()
        if not self._knows or now < self._next:
            return []
        self._next = now + max(_BETWEEN_SECONDS, _SECONDS_PER_RANK * len(self._others))
        present, hidden = self._processes()
        if self._me not in present:
            return []  # /proc does not show this very process: it cannot tell about others
        for rank in present.keys() & self._seen.keys():
            self._seen[rank] |= present[rank]
        gone = [rank for rank in self._others if rank not in present and self._has_ended(rank, now, hidden)]
        self._missing_since = {rank: self._missing_since.get(rank, now) for rank in gone}
        return [rank for rank, since in self._missing_since.items() if now - since >= _BETWEEN_SECONDS]

    def _has_ended(self, rank: int, now: float, hidden: bool) -> bool:
        """``hidden``: the launcher has a process whose rank cannot be read."""
        if self._seen[rank]:
            return not any(_is_running(*process) for process in self._seen[rank])
        return not hidden and now >= self._all_started

    def _processes(self) -> tuple[dict[int, set[_Process]], bool]:
        """The processes of each rank, and whether the launcher has a process whose rank cannot be read: a process of
        another user or user namespace, or one that has overwritten its environment."""
        ranks: dict[int, set[_Process]] = {}
        hidden = False
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    entries = file.read().split(b"\0")
            except PermissionError:
                entries = []
            except OSError:
                continue  # it has ended
            if not any(b"=" in entry for entry in entries):
                hidden = hidden or self._is_of_the_launcher(int(name))
                continue
            values = [entry[len(self._variable) :] for entry in entries if entry.startswith(self._variable)]
            if values and values[0].isdigit() and all(part in entries for part in self._job):
                stat = process_stat(name)
                ranks.setdefault(int(values[0]), set()).add((int(name), -1 if stat is None else stat.started))
        return ranks, hidden

    def _is_of_the_launcher(self, pid: int) -> bool:
        """Whether a process that runs is a descendant of the launcher."""
        stat = process_stat(pid)
        if stat is None or not stat.is_running:
            return False
        while stat is not None and pid > 1:
            if pid == self._launcher:
                return True
            pid = stat.parent
            stat = process_stat(pid)
        return False


def never_came(rank: int, text: str) -> RankLost:
    """The error about a rank whose process has ended without init()."""
    return RankLost(
        f"rank {rank} {text} before it called init(). All ranks must call it. Its own output may tell why it ended."
    )


def _is_running(pid: int, started: int) -> bool:
    """Whether the process with this start time exists and is no zombie."""
    stat = process_stat(pid)
    return stat is not None and stat.is_running and stat.started == started


def _is_launcher(pid: int) -> bool:
    """Whether the process that started the ranks is a launcher, and not the shell of a user who set the variables."""
    stat = process_stat(pid) if pid > 1 else None
    return stat is not None and (launchers.is_launcher_name(stat.name) or "TORCHELASTIC_RUN_ID" in os.environ)


def _age_of_this_process() -> float:
    stat = process_stat(os.getpid())
    assert stat is not None
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - stat.started / os.sysconf("SC_CLK_TCK"))
