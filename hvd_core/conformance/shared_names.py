"""Files that a backend leaves in /dev/shm, told apart from the files of other programs there."""

from __future__ import annotations

import os
from pathlib import Path

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
