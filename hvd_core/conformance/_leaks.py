"""What a process leaks: descriptors, threads, mappings, memory, and files in /dev/shm."""

from __future__ import annotations

import os
import time
from pathlib import Path

MEMORY_PER_ROUND = 256 << 10
END_SECONDS = 3.0


def footprint() -> dict[str, int]:
    """The resources that a process may leak: descriptors, threads, mappings, private memory."""
    private = 0
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty:"):
            private = int(line.split()[1]) << 10
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "mappings": Path("/proc/self/maps").read_bytes().count(b"\n"),
        "bytes of memory": private,
    }


def grown(before: dict[str, int], after: dict[str, int], rounds: int) -> str:
    """The resources that have grown by more than an accident, so that every round leaks; "" if none has."""
    allowed = {
        "descriptors": rounds // 10, "threads": rounds // 10, "mappings": rounds // 2,
        "bytes of memory": rounds * MEMORY_PER_ROUND,
    }  # fmt: skip
    return ", ".join(
        f"{after[what] - before[what]} {what}"
        for what, more in allowed.items()
        if after[what] > before[what] + more
    )


def leaked(before: dict[str, int], rounds: int) -> str:
    """The resources that have grown since `before`, as grown() names them.

    A detached thread is counted until the system has taken it away, which may be after it has said that its work is
    done. So where there are more threads than before, they have END_SECONDS to go.
    """
    end = time.monotonic() + END_SECONDS
    while (left := grown(before, now := footprint(), rounds)) and now["threads"] > before["threads"]:
        if time.monotonic() > end:
            break
        time.sleep(0.02)
    return left


def settled() -> dict[str, int]:
    """The footprint when the number of threads has not fallen for a tenth of a second: threads that are ending would
    hide others that are left later."""
    found, since = footprint(), time.monotonic()
    while time.monotonic() < since + 0.1:
        time.sleep(0.02)
        now = footprint()
        if now["threads"] < found["threads"]:
            since = time.monotonic()
        found = now
    return found


# ---- files in /dev/shm, where other programs have files too -----------------------------------------------------------

FOLDER = Path("/dev/shm")


def names() -> set[str]:
    """The names of all files in /dev/shm, whichever program made them."""
    return set(os.listdir(FOLDER)) if FOLDER.is_dir() else set()


def used_by(process: str) -> set[str]:
    """The names in /dev/shm that a process has mapped or opened. `process` is its number, or "self".

    The set is empty for a process that has ended, and for a process of another user.
    """
    used = set()
    try:
        for line in Path(f"/proc/{process}/maps").read_text(errors="surrogateescape").splitlines():
            if f" {FOLDER}/" in line:
                used.add(line.split(f" {FOLDER}/", 1)[1])
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            target = os.path.realpath(descriptor)
            if target.startswith(f"{FOLDER}/"):
                used.add(target[len(f"{FOLDER}/") :])
    except OSError:
        pass  # it has ended meanwhile, or belongs to another user
    return used


class SharedNames:
    """Finds the names that this process leaves in /dev/shm from the object's creation on.

    The folder belongs to all programs of the host, and the kernel does not record the process that made a file. So a
    name counts as left behind for one of two reasons: `look` saw this process use it; or there is such a name for
    every round, and no other living process uses them.
    """

    def __init__(self) -> None:
        self._before = names()
        self._own: set[str] = set()

    def look(self) -> None:
        """Notes the names that this process uses now."""
        self._own |= used_by("self") - self._before

    def left(self, rounds: int) -> set[str]:
        """The names that were left behind in `rounds` rounds."""
        new = names() - self._before
        own = new & self._own
        rest = new - own
        if len(rest) >= rounds:
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit():
                    rest -= used_by(entry.name)
        return own | rest if len(rest) >= rounds else own
