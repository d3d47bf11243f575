"""Whether a process of this host has ended, seen without being its parent."""

from __future__ import annotations

import os
import select


class Process:
    """A process by its pid. Any thread may ask."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._descriptor = _descriptor_of(pid)

    def alive(self) -> bool:
        """Whether it runs."""
        if self._descriptor is None:
            return os.path.exists(f"/proc/{self._pid}")
        return self._descriptor >= 0 and not is_ready(self._descriptor)

    def close(self) -> None:
        """Give the descriptor back."""
        if self._descriptor is not None and self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = None


def is_ready(descriptor: int) -> bool:
    """Whether a descriptor can be read or has come to its end. It may have any number: select() knows only those below
    1,024."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def _descriptor_of(pid: int) -> int | None:
    """A descriptor by which the end of a process is seen; -1: it has ended; None: the system refuses one."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return -1
    except OSError:
        return None
