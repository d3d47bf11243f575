"""What a job can and cannot do while ranks come and go, by the launcher that has started it. Any thread."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from hvd_core._bootstrap.launchers.identity import identify
from hvd_core._runtime import current_job

_log = logging.getLogger("horovod")

_MPI = "mpirun started it, and ends all processes of a job when one of them dies"
_WHY = {
    "horovodrun": "horovodrun started it with a fixed number of processes",
    "openmpi": _MPI,
    "mpich": _MPI,
    "srun": (
        "srun started it, which starts no process in place of one that has died (and ends the others with "
        "--kill-on-bad-exit=1)"
    ),
    "torchrun": (
        "torchrun started it, whose --max-restarts ends all processes when one dies and starts them again; the program "
        "must read a checkpoint then"
    ),
}
_FIX = {
    "horovodrun": "horovodrun -np N --min-np M ... (and --host-discovery-script SCRIPT, if hosts come and go)",
    "srun": (
        "start one horovodrun --min-np M in the allocation, with the allocation's hosts, or restart the job from a "
        "checkpoint"
    ),
    "torchrun": "horovodrun -np N --min-np M ... in place of torchrun, or read a checkpoint at the start",
}
_OTHER = "horovodrun -np N --min-np M ..., or restart the job from a checkpoint"

_told = False


def explanation(environ: Mapping[str, str]) -> str:
    """Why this job does not go on without a rank that has died, and what to do."""
    try:
        launcher = identify(environ).launcher
    except ValueError:
        launcher = ""  # init() reports it
    why = _WHY.get(launcher, "its launcher did not start it as one")
    return f"horovod: this job is not elastic: {why}.\n  fix: {_FIX.get(launcher, _OTHER)}"


def ranks_may_change() -> bool:
    """Whether ranks may come and go under an optimizer, a tape or a graph that exists already. Launchers of elastic jobs
    set HOROVOD_ELASTIC."""
    return os.environ.get("HOROVOD_ELASTIC", "0") not in ("", "0")


def warn_once() -> None:
    """Says on rank 0 of a job of several ranks, once, that hvd.elastic.run only calls the function."""
    global _told
    if _told or not current_job.is_initialized() or current_job.size() == 1:
        return
    _told = True
    if current_job.rank() == 0:
        _log.warning(
            "%s\n  hvd.elastic.run calls the function once. States, commits and samplers work. If a rank dies, the job "
            "ends.",
            explanation(os.environ),
        )
