"""The function of `horovod.run` and its results, in unnamed memory files that only processes of the job hold.

The launcher makes them, and so does the agent of each other host. The ranks inherit the descriptors; two variables hold
their numbers. Any thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

FUNC_FD = "HOROVOD_RUN_FUNC_FD"
RESULT_FD = "HOROVOD_RUN_RESULT_FD"


def read_all(descriptor: int) -> bytes:
    """The content of the memory file. Does not move its position, which other processes share."""
    size, parts, done = os.fstat(descriptor).st_size, [], 0
    while done < size:
        parts.append(os.pread(descriptor, min(size - done, 1 << 30), done))
        if not parts[-1]:
            break
        done += len(parts[-1])
    return b"".join(parts)


def write_all(descriptor: int, data: bytes) -> None:
    """Writes `data` at the beginning of the memory file."""
    view, done = memoryview(data), 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done : done + (1 << 30)], done)


def append(descriptor: int, data: bytes) -> None:
    """Appends `data` to the memory file."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class FunctionMemory:
    """`function`: a descriptor; `results`: rank -> descriptor. Raises OSError if the process has no descriptors left."""

    def __init__(self, ranks: Iterable[int]):
        self.function = -1
        self.results: dict[int, int] = {}
        try:
            self.function = os.memfd_create("horovod-run-function")
            for rank in ranks:
                self.add(rank)
        except BaseException:
            self.close()
            raise

    def add(self, rank: int) -> None:
        """Makes the memory for the result of one more rank. Raises OSError."""
        self.results[rank] = os.memfd_create(f"horovod-run-result-{rank}")

    def drop_if_empty(self, rank: int) -> None:
        """Forgets a rank that has left no result."""
        if rank in self.results and not os.fstat(self.results[rank]).st_size:
            os.close(self.results.pop(rank))

    def variables(self, rank: int) -> dict[str, str]:
        """The variables that tell a rank the numbers of its descriptors."""
        return {FUNC_FD: str(self.function), RESULT_FD: str(self.results[rank])}

    def descriptors(self, rank: int) -> tuple[int, int]:
        return self.function, self.results[rank]

    def close(self) -> None:
        for descriptor in [self.function, *self.results.values()]:
            if descriptor >= 0:
                os.close(descriptor)
        self.function, self.results = -1, {}
