"""Chooses how the ranks find the job's store, from the launcher's variables alone; nothing is started or connected.

MPI is started only where the launcher is MPI's own or was told to start MPI programs (`srun --mpi=pmix`), where it runs
already, or where HOROVOD_RENDEZVOUS asks for it: in a process that no process manager of MPI knows, MPI ends the job.
"""

import sys
from dataclasses import dataclass

from hvd_core._bootstrap import mpi_rendezvous
from hvd_core._bootstrap.lasting_store import SCHEME

WISHES = ("auto", "unix", "pmi", "mpi4py")
_MPI_LAUNCHERS = ("openmpi", "mpich", "pmix")


@dataclass(frozen=True)
class Way:
    """``name``: 'alone', 'store', 'rank 0', 'unix', 'pmi', 'mpi4py', or 'missing' if there is no way.

    ``why``: what decided it; ``better``: what would make it work, or work better; "" if nothing.
    """

    name: str
    why: str
    better: str = ""


def choose(identity, environ):
    """The Way of this process. Raises ValueError if HOROVOD_RENDEZVOUS has no meaning."""
    whole, wish = identity.whole, environ.get("HOROVOD_RENDEZVOUS", "auto")
    if wish not in WISHES:
        known = ", ".join(map(repr, WISHES))
        raise ValueError(f"HOROVOD_RENDEZVOUS={wish!r} is not one of {known}")
    if whole.size == 1:
        return Way("alone", "the job has one process")
    if whole.store is not None:
        if whole.store.startswith(SCHEME):
            return Way("rank 0", f"rank 0 serves the store at HOROVOD_STORE={whole.store}")
        return Way("store", f"the launcher serves the store at HOROVOD_STORE={whole.store}")
    if wish != "auto":
        return Way(wish, f"HOROVOD_RENDEZVOUS={wish}")
    if whole.size is not None and whole.local_size == whole.size:
        return Way("unix", f"{whole.launcher} started all {whole.size} processes on this host")
    return _across_hosts(whole, environ)


def _across_hosts(whole, environ):
    slurm = in_step(environ)
    if mpi_runs():
        return Way("mpi4py", "the program has started MPI (mpi4py)")
    if "PMI_FD" in environ and not (mpi_rendezvous.available() and (not slurm or names_backend_mpi(environ))):
        return Way("pmi", "the launcher's process manager speaks PMI-1 (PMI_FD)")
    asked = whole.launcher in _MPI_LAUNCHERS or (slurm and "PMIX_NAMESPACE" in environ)
    if asked and mpi_rendezvous.available():
        why = "srun was told to start MPI programs" if slurm else f"the launcher is {whole.launcher}"
        better = "srun --mpi=pmi2 needs neither MPI nor mpi4py" if slurm and "PMI_FD" not in environ else ""
        return Way("mpi4py", f"{why}, and mpi4py is installed", better)
    if whole.size is not None and whole.local_size is None:
        return Way(
            "unix", f"{whole.launcher} does not tell how many of the {whole.size} processes are on this host"
        )
    return Way("missing", _situation(whole), _remedy(whole, slurm))


def in_step(environ):
    """Whether srun has started this process, directly or with a launcher between."""
    return "SLURM_PROCID" in environ and "SLURM_STEP_NUM_TASKS" in environ


def names_backend_mpi(environ):
    """Whether a setting names the backend mpi, which starts MPI itself and so needs the process manager for it."""
    from hvd_core._config import plugins_toml
    from hvd_core._config.selection_rules import ladder

    try:
        levels = ladder(environ, None, plugins_toml.load(environ).levels())
    except (ValueError, OSError):
        return False  # the choice of backends reports the fault
    return any("mpi" in rule.names for level in levels for rule in level.rules)


def mpi_runs():
    """Whether mpi4py has started MPI in this process, and it has not ended."""
    MPI = sys.modules.get("mpi4py.MPI")
    return MPI is not None and MPI.Is_initialized() and not MPI.Is_finalized()


def _situation(whole):
    if whole.size is None:
        return f"{whole.variable} is set, but nothing in the environment says how many processes the job has"
    return (
        f"the job has {whole.size} processes and {whole.launcher} started {whole.local_size} of them on this host, so "
        "they need a way to find each other"
    )


def _remedy(whole, slurm):
    own = "start with horovodrun, which brings what they need"
    if slurm:
        return f"start with srun --mpi=pmi2 (or set SLURM_MPI_TYPE=pmi2), or {own}{_over_mpi('srun')}"
    if whole.launcher in _MPI_LAUNCHERS:
        return (
            f"install mpi4py for the MPI you launch with (pip install mpi4py), or {own} (horovodrun --mpi starts them by "
            "mpirun)"
        )
    return (
        f"{own}; or give all processes HOROVOD_STORE={SCHEME}HOST:PORT with a free port on the host of rank 0, and the "
        f"same HOROVOD_SECRET_KEY{_over_mpi('the launcher')}"
    )


def _over_mpi(launcher):
    """Advice for launchers that start MPI programs without telling so; MPI ends the job if they do not."""
    if not mpi_rendezvous.available():
        return ""
    return f"; or, if {launcher} starts programs of MPI here, set HOROVOD_RENDEZVOUS=mpi4py"
