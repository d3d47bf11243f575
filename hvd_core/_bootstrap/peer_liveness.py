"""The process that has started this rank, so that its end is seen: where it is gone, nothing ends this rank any more.

Only a process that is known to be a launcher is watched: one with a launcher's name, or the agent above a rank of
torchrun. A plain program is never watched, nor one that another parent has taken over before init(). During init() the
session looks, later the engine does (hvd_core/engine/observe/process_watch.h). horovodrun ends its ranks itself.
"""

import os
import select
import time

from hvd_core._bootstrap.identity import LAUNCHER_NAMES, launcher_process, process_status

# Names of processes that take over the ranks of a launcher that has ended, or start programs of all kinds.
_NO_AGENTS = frozenset(
    (
        "systemd",
        "init",
        "tini",
        "dumb-init",
        "docker-init",
        "catatonit",
        "containerd-shim",
        "conmon",
        "sshd",
        "su",
        "sudo",
    )
    + ("sh", "bash", "dash", "zsh", "fish", "tmux", "tmux: server", "screen")
)


class LauncherProcess:
    """``fd``: a pidfd, which its maker closes; ``text``: the sentence that says that the process has ended."""

    def __init__(self, fd, text):
        self.fd, self.text = fd, text

    def has_ended(self):
        """Whether the process is gone. Takes one system call."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return bool(poll.poll(0))


def find_launcher_process(identity, host, environ=os.environ):
    """The LauncherProcess of this rank, or None where no launcher is known or it cannot be watched."""
    whole = identity.whole
    if whole.variable is None or whole.launcher in ("single", "horovodrun"):
        return None
    pid, _, started = launcher_process(whole.variable).partition(":")
    pid = int(pid)
    name = process_status(pid)[0] if pid > 1 else None
    if name is None or not _is_launcher(name, whole.launcher, environ):
        return None
    try:
        fd = os.pidfd_open(pid)
    except (OSError, AttributeError):  # it has ended; or the kernel forbids it
        return None
    if process_status(pid)[2] != int(started):
        os.close(fd)  # another process has got its number
        return None
    shown = "torchrun" if whole.launcher == "torchrun" else name
    return LauncherProcess(
        fd, f"the launcher of rank {identity.rank} (host {host}) is gone: {shown}, pid {pid}, has ended"
    )


def _is_launcher(name, launcher, environ):
    if name in LAUNCHER_NAMES:
        return True
    return launcher == "torchrun" and "TORCHELASTIC_RUN_ID" in environ and name not in _NO_AGENTS


# Notices that a rank of this host has no process any more, where the launcher does not tell.
#
# mpirun and torchrun say nothing about a rank that ends with exit code 0 before init(), and the others would wait for the
# start timeout. The ranks of one host are started at nearly the same time, and each process carries its rank in its
# environment: so a rank whose number no process carries has ended. A program may overwrite its environment later, so a
# process that was seen once counts until it ends. Used on the thread that runs init().

_LAUNCHERS = ("openmpi", "mpich", "torchrun")
# Ranks are started one after the other. Seconds after the start of this process by which the others have started too:
# a rank that was never seen counts as ended only after that time.
_STARTED_SECONDS = 1.5
_STARTED_SECONDS_PER_RANK = 0.05
# A rank counts as gone if it is missing in two looks that are so far apart.
_BETWEEN_SECONDS = 0.3
# With many ranks the looks get rarer, since each rank looks at all of them.
_SECONDS_PER_RANK = 0.01


class SiblingWatch:
    """``identity``: of this process. look() does nothing where it cannot tell: another launcher, several hosts."""

    def __init__(self, identity):
        whole = identity.whole
        self._variable, self._job = whole.variable, [part.encode() for part in whole.job]
        self._me = whole.rank
        members = range(whole.size or 0) if identity.members is None else identity.members
        self._others = [rank for rank in members if rank != whole.rank]
        self._seen = {rank: set() for rank in self._others}  # by rank: (pid, start time) of its processes
        self._missing_since = {}
        self._next = 0.0
        one_host = whole.size is not None and whole.local_size == whole.size
        self._knows = whole.launcher in _LAUNCHERS and one_host and _has_launcher(whole.variable)
        if self._knows:
            self._launcher = int(launcher_process(whole.variable).partition(":")[0])
            self._all_started = (
                time.monotonic()
                - _age_of_this_process()
                + _STARTED_SECONDS
                + _STARTED_SECONDS_PER_RANK * len(self._others)
            )

    def missing(self):
        """The launcher's ranks that have no process on this host any more, to be called from time to time."""
        now = time.monotonic()
        if not self._knows or now < self._next:
            return []
        self._next = now + max(_BETWEEN_SECONDS, _SECONDS_PER_RANK * len(self._others))
        present, hidden = self._look()
        if self._me not in present:
            return []  # /proc does not show this very process: it cannot tell about others
        for rank in present.keys() & self._seen.keys():
            self._seen[rank] |= present[rank]
        gone = [rank for rank in self._others if rank not in present and self._has_ended(rank, now, hidden)]
        self._missing_since = {rank: self._missing_since.get(rank, now) for rank in gone}
        return [rank for rank, since in self._missing_since.items() if now - since >= _BETWEEN_SECONDS]

    def _has_ended(self, rank, now, hidden):
        """`hidden`: the launcher has a process whose rank cannot be read."""
        if self._seen[rank]:
            return not any(_runs(*process) for process in self._seen[rank])
        return not hidden and now >= self._all_started

    def _look(self):
        """The processes of each rank, and whether the launcher has a process whose rank cannot be read: a process of
        another user or user namespace, or one that has overwritten its environment."""
        ranks, hidden, prefix = {}, False, self._variable.encode() + b"="
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
            values = [entry[len(prefix) :] for entry in entries if entry.startswith(prefix)]
            if values and values[0].isdigit() and all(part in entries for part in self._job):
                ranks.setdefault(int(values[0]), set()).add((int(name), process_status(name)[2]))
        return ranks, hidden

    def _is_of_the_launcher(self, pid):
        """Whether a process that runs is a descendant of the launcher."""
        if not _runs(pid, process_status(pid)[2]):
            return False
        while pid is not None and pid > 1:
            if pid == self._launcher:
                return True
            pid = process_status(pid)[1]
        return False


def _runs(pid, started):
    """Whether the process with this start time exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return False
    return fields[0] not in (b"Z", b"X") and int(fields[19]) == started


def _has_launcher(variable):
    """Whether the process that started the ranks is a launcher, and not the shell of a user who set the variables."""
    pid = int(launcher_process(variable).partition(":")[0])
    name = process_status(pid)[0] if pid > 1 else None
    return name is not None and (name in LAUNCHER_NAMES or "TORCHELASTIC_RUN_ID" in os.environ)


def _age_of_this_process():
    started = process_status(os.getpid())[2] / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
