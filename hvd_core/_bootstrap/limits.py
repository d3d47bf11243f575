"""Limits of the operating system that a start can meet: an error names the limit, what is in use and the need.

Pure functions of the exception and of this process; any thread.
"""

from __future__ import annotations

import errno
import os
import resource
from contextlib import suppress

from hvd_core._base.sockets import BootstrapError

# Descriptors of a rank: the store, its links, the engine and one backend; measured, with some room. Each neighbour on
# this host adds its socket, its eventfds and what watches it.
_DESCRIPTORS = 16
_PER_NEIGHBOUR = 4
_NEED = f"init() needs about {_DESCRIPTORS} more, and {_PER_NEIGHBOUR} for each neighbour on this host"


class LimitReached(BootstrapError):
    """This process, or this host, lacks descriptors, threads or room for a file that init() needs."""


def explained(error: BaseException) -> LimitReached | None:
    """The LimitReached that replaces `error`; None if `error` is not about a limit, or is explained already."""
    if isinstance(error, LimitReached):
        return None
    cause = error.__cause__ or error.__context__  # of an error that says what was not possible then
    if any(isinstance(e, OSError) and e.errno == errno.EMFILE for e in (error, cause)):
        return too_few_descriptors()
    if isinstance(error, OSError) and error.errno == errno.ENFILE:
        return LimitReached("this host has as many open files as it may have (/proc/sys/fs/file-max)")
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        return LimitReached(
            f"this process may write files of {_limit(resource.RLIMIT_FSIZE)} bytes only (ulimit -f), which limits "
            "shared memory too. init() needs some MiB: raise the limit, or lift it with 'ulimit -f unlimited'"
        )
    no_thread = isinstance(error, RuntimeError) and str(error).startswith("can't start new thread")
    if no_thread or (isinstance(error, OSError) and error.errno == errno.EAGAIN and "thread" in str(error)):
        return LimitReached(
            f"this process cannot start a thread: its user may have {_limit(resource.RLIMIT_NPROC)} processes and "
            f"threads (ulimit -u), its address space may have {_limit(resource.RLIMIT_AS)} bytes (ulimit -v), and a "
            "container may have a limit of its own (pids). init() needs about 8 threads"
        )
    return None


def too_few_descriptors(need: str | None = None) -> LimitReached:
    """The LimitReached for a process that has no descriptor left. ``need``: what this process needs, instead of the words
    for init()."""
    used = "all of them"
    with suppress(OSError):  # reading the folder needs a descriptor
        used = str(len(os.listdir("/proc/self/fd")))
    return LimitReached(
        f"this process may have {_limit(resource.RLIMIT_NOFILE)} open files (ulimit -n), and {used} are in use. "
        f"{need or _NEED}: raise the limit with 'ulimit -n'"
    )


def _limit(what: int) -> str:
    soft, _ = resource.getrlimit(what)
    return "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
