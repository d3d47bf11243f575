"""The observer's settings of one job, for the engine: where rings are saved, and which timeline is written.

Called by init(), on its thread.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvd_core.flight_records import SUFFIX, writer_of

if TYPE_CHECKING:
    from hvd_core._bootstrap.world import World
    from hvd_core._config.settings import EngineSettings

DYNAMIC = "DYNAMIC"
_KEPT_JOBS = 32


def flight_folder() -> Path:
    """The folder with one folder for each job whose flight recorders were saved: HOROVOD_FLIGHT_RECORDER_DIR, or
    ``horovod-flight-UID`` in the folder for temporary files."""
    named = os.environ.get("HOROVOD_FLIGHT_RECORDER_DIR", "").strip()
    return Path(named) if named else Path(tempfile.gettempdir()) / f"horovod-flight-{os.getuid()}"


def job_name(world: World) -> str:
    """A name that all ranks of this job have, and no other job: the same for all files of the job."""
    if not world.secret:
        return f"single-{os.getpid()}-{os.urandom(3).hex()}"
    return f"{hashlib.sha256(world.secret).hexdigest()[:12]}-{world.epoch}"


def engine_observes(settings: EngineSettings, world: World) -> dict[str, Any]:
    """The value of "observe" in the engine's configuration."""
    job = job_name(world)
    folder = flight_folder()
    if settings.flight_recorder and world.local_rank == 0:
        _forget_old_jobs(folder)
    path = settings.timeline
    return {
        "recorder": settings.flight_recorder,
        "watched": settings.watched,
        "flight_folder": str(folder / job),
        "job": job,
        "clock_offset_ns": world.clock_offset_ns,
        "timeline": "" if path.upper() == DYNAMIC else path,
        "timeline_mark_cycles": settings.timeline_mark_cycles,
        "timeline_all_ranks": settings.timeline_all_ranks,
        "timeline_max_bytes": settings.timeline_max_bytes,
    }


def _forget_old_jobs(folder: Path) -> None:
    """Delete the files of the oldest jobs, so that failing jobs do not fill the disk."""
    try:
        with os.scandir(folder) as entries:
            found = [(entry.stat().st_mtime, entry.path) for entry in entries if entry.is_dir()]
    except OSError:
        return  # no job has failed here yet
    for _, path in sorted(found)[:-_KEPT_JOBS]:
        if not _is_live(Path(path)):
            shutil.rmtree(path, ignore_errors=True)


def _is_live(job: Path) -> bool:
    """Whether a process that writes to a recorder in this folder still runs, however long ago it began."""
    try:
        recorders = list(job.glob(f"*{SUFFIX}"))
    except OSError:
        return False  # another process has deleted it meanwhile
    for path in recorders:
        try:
            os.kill(writer_of(path), 0)
        except (OSError, ValueError) as error:
            if not isinstance(error, PermissionError):
                continue
        return True
    return False
