"""Other processes of this host, as /proc describes them. The one parser of /proc/PID/stat in this package: psutil does
the same, but importing it takes longer than the rest of init(). Any thread."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProcessStat:
    """``started``: in clock ticks since the boot; a process number and this tell a process apart from all others."""

    name: str
    state: str
    parent: int
    started: int

    @property
    def is_running(self) -> bool:
        """Whether it is no zombie."""
        return self.state not in ("Z", "X")


def process_stat(pid: int | str) -> ProcessStat | None:
    """The process with this number; None if there is none, or it cannot be read."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            head, _, tail = file.read().rpartition(b")")
    except OSError:
        return None
    fields = tail.split()
    return ProcessStat(
        head.partition(b"(")[2].decode(errors="replace"), fields[0].decode(), int(fields[1]), int(fields[19])
    )
