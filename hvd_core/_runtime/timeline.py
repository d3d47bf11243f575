"""start_timeline() and stop_timeline(): rank 0 switches the timeline of all ranks at one point of the log.

All ranks may call, at the same point of the program. The call of rank 0 decides; on other ranks it only checks the
arguments, so that a program that calls on rank 0 alone works as well. Any thread.
"""

from __future__ import annotations

import os

from hvd_core._runtime import current_job


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Write a timeline to ``file_path`` from now on; see docs/timeline.md. A timeline under way ends first.

    Returns on rank 0 when its file is there. Raises ValueError before init() and for an empty path, TypeError for one
    that is no path, OSError if rank 0 cannot make the file, HorovodInternalError if the job has ended.
    """
    job = current_job.get()
    path = os.fspath(file_path)
    if not isinstance(path, str):
        raise TypeError(f"start_timeline: file_path must be a str, found {type(file_path).__name__}")
    if not path:
        raise ValueError("start_timeline: file_path is empty; name the file that rank 0 shall write")
    # Other ranks of this host may have another current folder.
    path = os.path.abspath(path)
    if job.world.rank == 0:
        own = path.replace("{rank}", "0")
        os.close(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))
    job.engine.switch_timeline(path, bool(mark_cycles), _all_ranks())


def stop_timeline() -> None:
    """End the timeline on all ranks. Returns on rank 0 when its file is complete. Without a timeline it does nothing.

    Raises ValueError before init().
    """
    current_job.get().engine.switch_timeline("")


def _all_ranks() -> bool:
    from hvd_core._config import read_environment

    return read_environment().timeline_all_ranks
