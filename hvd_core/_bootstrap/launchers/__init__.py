"""Launchers: programs that start the ranks of a job, each as one class with its variables and what it can do.

To add a launcher, write one file:

1. `launchers/NAME.py` with a subclass of `Launcher` (launcher.py): its ``name``, the variables of rank and size, and what
   differs from the defaults (local ranks, job variables, process names, whether it starts MPI). openmpi.py is a short
   example, slurm.py one with methods of its own.
2. Add an instance to `LAUNCHERS` below. The first launcher in that order whose variables are set is used: one launcher
   may have started another, and the inner one must come first.
3. Add a row to tests/hvd_core/bootstrap/test_bootstrap_identity.py, to the table in docs/launch.md, and to that of
   secrets in hvd_core/_bootstrap/README.md.

Everything else derives from these classes: `identify()`, `hvd doctor` and its bundle, the watch over the launcher, the
choice of a rendezvous method, the warning about contradicting variables, remedies. Reads the given mapping only, and
/proc where process.py is used. Any thread.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from hvd_core._bootstrap.launchers.horovodrun import Horovodrun
from hvd_core._bootstrap.launchers.launcher import Launcher
from hvd_core._bootstrap.launchers.mpich import Mpich
from hvd_core._bootstrap.launchers.openmpi import OpenMpi
from hvd_core._bootstrap.launchers.pmix import Pmix
from hvd_core._bootstrap.launchers.slurm import Slurm
from hvd_core._bootstrap.launchers.torchrun import Torchrun

__all__ = [
    "LAUNCHERS",
    "PROCESS_NAMES",
    "VARIABLE_PREFIXES",
    "Claim",
    "Launcher",
    "claims",
    "disagreement",
    "find",
    "is_launcher_name",
    "named",
    "warn_of_contradiction",
]

_log = logging.getLogger("horovod")

LAUNCHERS: tuple[Launcher, ...] = (Horovodrun(), OpenMpi(), Mpich(), Torchrun(), Slurm(), Pmix())
"""All launchers, in the order in which their variables are believed."""

VARIABLE_PREFIXES = tuple(sorted({prefix for launcher in LAUNCHERS for prefix in launcher.variable_prefixes}))
"""How the names of variables begin that make a process a rank of some launcher's job."""

PROCESS_NAMES = frozenset(name for launcher in LAUNCHERS for name in launcher.process_names)


def find(environ: Mapping[str, str]) -> Launcher | None:
    """The launcher that started this process; None for a process that was started alone."""
    return next((launcher for launcher in LAUNCHERS if launcher.is_present(environ)), None)


def named(name: str) -> Launcher | None:
    """The launcher with this ``name`` (World.launcher); None for 'single', 'mpi' and other jobs without one."""
    return next((launcher for launcher in LAUNCHERS if launcher.name == name), None)


def is_launcher_name(process_name: str) -> bool:
    """Whether a process with this name starts ranks. A wrapper script has the same variables as a launcher, so that only
    the name tells them apart."""
    return process_name in PROCESS_NAMES


@dataclass(frozen=True)
class Claim:
    """Rank and size according to one launcher: the values of its two variables."""

    launcher: Launcher
    variables: tuple[str, str]
    rank: str
    size: str

    def __str__(self) -> str:
        return f"{self.launcher.name} says rank {self.rank} of {self.size} ({', '.join(self.variables)})"


def claims(environ: Mapping[str, str]) -> list[Claim]:
    """The claims of all launchers whose two variables are set, in the order in which they are believed."""
    found = []
    for launcher in LAUNCHERS:
        rank, size = launcher.rank_variable, launcher.size_variable
        if size is not None and rank in environ and size in environ:
            found.append(Claim(launcher, (rank, size), environ[rank].strip(), environ[size].strip()))
    return found


def disagreement(environ: Mapping[str, str]) -> str:
    """The sentences about launchers that contradict the one that is believed, or ""."""
    found = claims(environ)
    others = [claim for claim in found[1:] if (claim.rank, claim.size) != (found[0].rank, found[0].size)]
    if not others:
        return ""
    return (
        f"The variables of {len(others) + 1} launchers are set and differ: {found[0]}, which is used; "
        f"{'; '.join(map(str, others))}. If the first is left over, unset its variables before the program starts."
    )


def warn_of_contradiction(job_size: int | None, environ: Mapping[str, str]) -> None:
    """Logs a warning where the job is likely not the one that the launcher has started: one process instead of several,
    or general variables (RANK) that no launcher has set."""
    found = claims(environ)
    if not found or found[0].launcher.has_own_variables:
        return
    more = any(claim.size.isdigit() and int(claim.size) > 1 for claim in found[1:])
    if ((job_size == 1 and more) or found[0].launcher.is_set_by_hand(environ)) and disagreement(environ):
        _log.warning("%s", disagreement(environ))
