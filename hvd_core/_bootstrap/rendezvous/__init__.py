"""Rendezvous: how the ranks of a job find its store, the launcher's or one that the job's rank 0 starts.

Each `RendezvousMethod` is one class in a module of its own:

    store    launcher_store.py   the launcher serves the store and names it in HOROVOD_STORE
    rank 0   rank0_store.py      rank 0 serves it at HOROVOD_STORE=rank0://HOST:PORT
    unix     unix_socket.py      one host: rank 0 starts it, the others ask at an abstract Unix socket
    pmi      pmi.py              several hosts: rank 0 publishes it over the launcher's PMI-1
    mpi4py   mpi.py              several hosts, or a communicator: rank 0 sends it over MPI

custom.py is for programs that number the ranks and distribute a few bytes themselves. To add a method, write its class,
a row of `_METHODS` and a branch of `choose()`.

choose() reads the launcher's variables alone; nothing is started or connected. MPI is started only where the launcher is
MPI's own or was asked to start MPI programs (`srun --mpi=pmix`), where it runs already, or where HOROVOD_RENDEZVOUS asks
for it: in a process that no process manager of MPI knows, MPI ends the job. Called on the thread that runs init().
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from hvd_core._base.sockets import BootstrapError
from hvd_core._bootstrap import launchers
from hvd_core._bootstrap.launchers.identity import RANK0_SCHEME, Identity
from hvd_core._bootstrap.launchers.slurm import in_step
from hvd_core._bootstrap.rendezvous import mpi4py_support

if TYPE_CHECKING:
    from hvd_core._base.sockets import Deadline
    from hvd_core._bootstrap.rendezvous.base import Rendezvous, RendezvousMethod

WISHES = ("auto", "unix", "pmi", "mpi4py")
"""The values of HOROVOD_RENDEZVOUS."""


# Imported when it is needed: most processes need one of them.
_METHODS = {
    "store": ("launcher_store", "LauncherStore"),
    "rank 0": ("rank0_store", "FixedAddress"),
    "unix": ("unix_socket", "UnixSocket"),
    "pmi": ("pmi", "OverPmi"),
    "mpi4py": ("mpi", "OverMpi"),
}


@dataclass(frozen=True)
class Choice:
    """The method of a process.

    ``method``: its name, 'alone' for a job of one process, 'missing' if no method is usable. ``reason``: what decided it.
    ``remedy``: what would make it work, or work better; "" if nothing.
    """

    method: str
    reason: str
    remedy: str = ""


def choose(identity: Identity, environ: Mapping[str, str]) -> Choice:
    """The Choice of this process. Raises ValueError if HOROVOD_RENDEZVOUS has no meaning."""
    whole, wish = identity.whole, environ.get("HOROVOD_RENDEZVOUS", "auto")
    if wish not in WISHES:
        known = ", ".join(map(repr, WISHES))
        raise ValueError(f"HOROVOD_RENDEZVOUS={wish!r} is not one of {known}")
    if whole.size == 1:
        return Choice("alone", "the job has one process")
    if whole.store is not None:
        if whole.store.startswith(RANK0_SCHEME):
            return Choice("rank 0", f"rank 0 serves the store at HOROVOD_STORE={whole.store}")
        return Choice("store", f"the launcher serves the store at HOROVOD_STORE={whole.store}")
    if wish != "auto":
        return Choice(wish, f"HOROVOD_RENDEZVOUS={wish}")
    if whole.size is not None and whole.local_size == whole.size:
        return Choice("unix", f"{whole.launcher} started all {whole.size} processes on this host")
    return _across_hosts(whole, environ)


def _method_of(choice: Choice) -> RendezvousMethod:
    """The method that was chosen. Raises BootstrapError, with the remedy, if none is usable."""
    if choice.method not in _METHODS:
        raise BootstrapError(f"{choice.reason}. fix: {choice.remedy}.")
    module, name = _METHODS[choice.method]
    method: RendezvousMethod = getattr(import_module(f"{__name__}.{module}"), name)()
    return method


def find_store(
    identity: Identity, environ: Mapping[str, str], deadline: Deadline
) -> tuple[Identity, Rendezvous]:
    """The identity, with its size, and the Rendezvous of its job. Raises BootstrapError that names what is missing."""
    return _method_of(choose(identity, environ)).find_store(identity, environ, deadline)


def attend(identity: Identity, environ: Mapping[str, str], deadline: Deadline) -> None:
    """Does what other parts of the launcher's ranks need from a process that is a job by itself: all processes exchange
    the store's address over PMI-1, and the launcher's rank 0 serves the store. Raises BootstrapError."""
    choice = choose(identity, environ)
    if choice.method in ("rank 0", "pmi"):
        _method_of(choice).attend(identity, environ, deadline)


def _across_hosts(whole: Identity, environ: Mapping[str, str]) -> Choice:
    launcher = launchers.named(whole.launcher)
    slurm = in_step(environ)
    if mpi4py_support.is_running():
        return Choice("mpi4py", "the program has started MPI (mpi4py)")
    available = mpi4py_support.is_installed()
    if "PMI_FD" in environ and not (available and (not slurm or names_backend_mpi(environ))):
        return Choice("pmi", "the launcher's process manager speaks PMI-1 (PMI_FD)")
    starts_mpi = launcher is not None and launcher.starts_mpi
    if available and (starts_mpi or (slurm and "PMIX_NAMESPACE" in environ)):
        reason = "srun was told to start MPI programs" if slurm else f"the launcher is {whole.launcher}"
        remedy = "srun --mpi=pmi2 needs neither MPI nor mpi4py" if slurm and "PMI_FD" not in environ else ""
        return Choice("mpi4py", f"{reason}, and mpi4py is installed", remedy)
    if whole.size is not None and whole.local_size is None:
        return Choice(
            "unix", f"{whole.launcher} does not tell how many of the {whole.size} processes are on this host"
        )
    return Choice("missing", _situation(whole), _remedy(whole, slurm, starts_mpi))


def names_backend_mpi(environ: Mapping[str, str]) -> bool:
    """Whether a setting names the backend mpi, which starts MPI itself and so needs the process manager for it."""
    from hvd_core._config import plugins_toml
    from hvd_core._config.selection_rules import ladder

    try:
        levels = ladder(environ, None, plugins_toml.load(environ).levels())
    except (ValueError, OSError):
        return False  # the choice of backends reports the fault
    return any("mpi" in rule.names for level in levels for rule in level.rules)


def _situation(whole: Identity) -> str:
    if whole.size is None:
        return f"{whole.variable} is set, but nothing in the environment says how many processes the job has"
    return (
        f"the job has {whole.size} processes and {whole.launcher} started {whole.local_size} of them on this host, so "
        "they need a way to find each other"
    )


def _remedy(whole: Identity, slurm: bool, starts_mpi: bool) -> str:
    own = "start with horovodrun, which brings what they need"
    if slurm:
        return f"start with srun --mpi=pmi2 (or set SLURM_MPI_TYPE=pmi2), or {own}{_over_mpi('srun')}"
    if starts_mpi:
        return (
            f"install mpi4py for the MPI you launch with (pip install mpi4py), or {own} (horovodrun --mpi starts them by "
            "mpirun)"
        )
    return (
        f"{own}; or give all processes HOROVOD_STORE={RANK0_SCHEME}HOST:PORT with a free port on the host of rank 0, and "
        f"the same HOROVOD_SECRET_KEY{_over_mpi('the launcher')}"
    )


def _over_mpi(launcher: str) -> str:
    """Advice for launchers that start MPI programs without saying so; MPI ends the job if they do not."""
    if not mpi4py_support.is_installed():
        return ""
    return f"; or, if {launcher} starts programs of MPI here, set HOROVOD_RENDEZVOUS=mpi4py"
