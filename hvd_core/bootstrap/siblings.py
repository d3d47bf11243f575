"""Notices that a rank of this host has no process any more, where the launcher does not tell.

mpirun and torchrun say nothing about a rank that ends with exit code 0 before init(), and the others would wait for the
start timeout. The ranks of one host are started at nearly the same time, and each process carries its rank in its
environment: so a rank whose number no process carries has ended. Only processes of the same user can be read.
Used on the thread that runs init().
"""

import os
import time

from .identity import LAUNCHER_NAMES, launcher_process, process_status

_LAUNCHERS = ("openmpi", "mpich", "torchrun")
# Ranks are started one after the other. Seconds after the start of this process by which the others have started too.
_STARTED_SECONDS = 1.5
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
        self._missing_since = {}
        self._next = 0.0
        one_host = whole.size is not None and whole.local_size == whole.size
        self._knows = whole.launcher in _LAUNCHERS and one_host and _has_launcher(whole.variable)
        if self._knows:
            self._began = time.monotonic() - _age_of_this_process()

    def missing(self):
        """The launcher's ranks that have no process on this host any more, to be called from time to time."""
        now = time.monotonic()
        if not self._knows or now < self._next or now - self._began < _STARTED_SECONDS:
            return []
        self._next = now + max(_BETWEEN_SECONDS, _SECONDS_PER_RANK * len(self._others))
        present = self._ranks_with_a_process()
        if self._me not in present:
            return []  # /proc does not show this very process: it cannot tell about others
        gone = [rank for rank in self._others if rank not in present]
        self._missing_since = {rank: self._missing_since.get(rank, now) for rank in gone}
        return [rank for rank, since in self._missing_since.items() if now - since >= _BETWEEN_SECONDS]

    def _ranks_with_a_process(self):
        ranks, prefix = set(), self._variable.encode() + b"="
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    entries = file.read().split(b"\0")
            except OSError:
                continue  # another user's, or it has ended
            values = [entry[len(prefix) :] for entry in entries if entry.startswith(prefix)]
            if values and values[0].isdigit() and all(part in entries for part in self._job):
                ranks.add(int(values[0]))
        return ranks


def _has_launcher(variable):
    """Whether the process that started the ranks is a launcher, and not the shell of a user who set the variables."""
    pid = int(launcher_process(variable).partition(":")[0])
    return pid > 1 and (process_status(pid)[0] in LAUNCHER_NAMES or "TORCHELASTIC_RUN_ID" in os.environ)


def _age_of_this_process():
    started = process_status(os.getpid())[2] / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
