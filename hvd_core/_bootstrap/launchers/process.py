"""The process on this host that started the ranks, and whether it has ended.

It tells two jobs on one machine apart, also where the launcher gives the job no name of its own. If it has ended, nothing
ends this rank any more, so it is watched: by the session during init(), by the engine afterwards
(hvd_core/engine/base/process.h). A plain program is never watched, nor one that another parent has taken over
before init(). Reads /proc; any thread.
"""

from __future__ import annotations

import hashlib
import os
import select
from collections.abc import Mapping

from hvd_core._base.processes import process_stat
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
