"""The process that has started this rank, so that its end is seen: where it is gone, nothing ends this rank any more.

Only a process that is known to be a launcher is watched: one with a launcher's name, or the agent above a rank of
torchrun. A plain program is never watched, nor one that another parent has taken over before init(). During init() the
session looks, later the engine does (hvd_core/engine/observe/process_watch.h). horovodrun ends its ranks itself.
"""

import os
import select

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


def find(identity, host, environ=os.environ):
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
