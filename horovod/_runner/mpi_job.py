"""Runs one job whose ranks mpirun starts, from checked arguments to its end (job.py: ranks of horovodrun itself).

mpirun assigns ranks and hosts, and ends the other ranks when one fails. This module starts the store of the rendezvous,
whose address and secret are passed in the environment, and runs mpirun under a keeper (keeper.py), so that no process
outlives the job. Blocks its thread.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from horovod._runner import function_store, mpi_flavours
from horovod._runner.addresses import store_place
from horovod._runner.env import (
    backend_environment,
    job_environment,
    remote_environment,
    store_environment,
)
from horovod._runner.exit_codes import shell_code
from horovod._runner.function_memory import FunctionMemory, read_all, write_all
from horovod._runner.hosts import HostInfo, check_interfaces
from horovod._runner.job import Placement, assign_slots, check_command, name_list, start_timeout
from horovod._runner.local_ranks import LocalRanks, RankSpec
from horovod._runner.mpi_output import LabelledStream
from horovod._runner.output import Output, RankStream
from horovod._runner.processes import Job, Outcome
from hvd_core._config.environment import encryption_wanted

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


def run_mpi_job(
    args: argparse.Namespace,
    command: Sequence[str],
    started: Callable[[MpiJob], None],
    extra_env: Mapping[str, str] | None = None,
    function: FunctionMemory | None = None,
) -> MpiOutcome:
    """Runs `command` once per rank with mpirun, and returns when no process of it is left here.

    `started` is called with the MpiJob before any process exists, for signal handlers. `function`: a function that the
    ranks read from the store, and the memory that gets their results. Raises ValueError, OSError.
    """
    placement = assign_slots(args)
    if args.nics:
        check_interfaces(args.nics)
    for slot in placement.slots:
        if ":" in slot.hostname:
            raise ValueError(
                f"mpirun takes no address of IPv6 as a host's name: give {slot.hostname} a name."
            )
    if args.remote_shell:
        raise ValueError(
            "--remote-shell works only if horovodrun itself starts the processes. mpirun has an option of its own: "
            "--mpi-args='--mca plm_rsh_agent COMMAND' for Open MPI, --mpi-args='-launcher-exec COMMAND' for MPICH."
        )
    env = mpi_environment({**job_environment(os.environ, args), **(extra_env or {})}, placement)
    if encryption_wanted(env) and placement.remote():
        raise ValueError(
            "HOROVOD_TLS=1: mpirun would pass the job's secret on to other hosts by connections of its own, which are "
            "not encrypted as a rule. Start the job without --mpi: horovodrun then sends the secret over ssh."
        )
    env |= backend_environment(env)
    start_timeout(args, env)  # a wrong one is an error here, before the ranks
    mpi = mpi_flavours.find_mpirun(os.environ)
    if placement.local():
        check_command(command)
    named = sorted(args.nics) if args.nics else name_list(env.get("HOROVOD_GLOO_IFACE"))
    place = store_place(list(placement.remote()), named)
    if len(set(place.remote.values())) > 1:
        # mpirun gives all ranks one environment, so there can be only one address.
        addresses = ", ".join(f"{host} by {address}" for host, address in place.remote.items())
        raise ValueError(
            f"The other hosts are behind different addresses of this machine ({addresses}), and mpirun gives all "
            "processes the same one. Name an interface that all hosts reach with --network-interfaces."
        )
    output = Output(len(placement.slots), timestamp=bool(args.prefix_output_with_timestamp))
    # Imported late, because wrong arguments need no engine.
    from hvd_core._base.sockets import join_address
    from hvd_core._bootstrap.store import StoreServer

    secret = secrets.token_bytes(32)
    server = StoreServer(host=place.listen, secret=secret)
    try:
        env |= store_environment(join_address(place.local, int(server.address.rpartition(":")[2])), secret)
        if function is not None:
            env[function_store.FROM_STORE] = "1"
            with _client(server, secret) as client:
                function_store.put(client, function_store.FUNCTION, read_all(function.function))
        made = mpi_flavours.start(mpi, _launch_options(args, mpi, placement, env), command)
        env |= made.env
        if args.verbose:
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
    here = len(placement.local())
    if here > len(os.sched_getaffinity(0)):
        # More ranks than cores: Open MPI sees enough slots, so by default all ranks would spin.
        made.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    return made


def _launch_options(
    args: argparse.Namespace, mpi: mpi_flavours.Mpi, placement: Placement, env: Mapping[str, str]
) -> mpi_flavours.LaunchOptions:
    counts: dict[str, int] = {}
    for slot in placement.slots:
        counts[slot.hostname] = counts.get(slot.hostname, 0) + 1
    export: list[str] = []
    if placement.remote():
        export = sorted(
            name
            for name in remote_environment(env)
            if _NAME.fullmatch(name) and _MPI_OWN.fullmatch(name) is None
        )
    if args.output_filename and mpi.hydra:
        for rank in range(len(placement.slots)):
            Path(args.output_filename, f"rank.{rank}").mkdir(parents=True, exist_ok=True)
    port, identity = args.ssh_port, args.ssh_identity_file
    return mpi_flavours.LaunchOptions(
        hosts=[HostInfo(host, count) for host, count in counts.items()],
        export=export,
        binding=None if args.binding_args is None else _words("--binding-args", args.binding_args),
        more=_words("--mpi-args", args.mpi_args or ""),
        interfaces=sorted(args.nics or ()),
        tcp=bool(args.tcp_flag),
        ssh=[*([] if port is None else ["-p", str(port)]), *([] if identity is None else ["-i", identity])],
        folder=args.output_filename and os.path.abspath(args.output_filename),
    )


def _client(server, secret: bytes):
    from hvd_core._bootstrap.store import StoreClient

    return contextlib.closing(StoreClient(server.address, secret))


def _collect(client, function: FunctionMemory, outcome: MpiOutcome) -> None:
    """Copies the ranks' results from the store to the memory in which horovod.run reads them."""
    from hvd_core._base.sockets import BootstrapTimeout

    for rank, descriptor in function.results.items():
        # A rank that ended before its function returned has no result.
        with contextlib.suppress(BootstrapTimeout):
            write_all(descriptor, function_store.get(client, function_store.result_key(rank), 0))
    outcome.raised_by = function_store.first_failure(client)


def _words(option: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{option}: {text!r} cannot be split into words: {error}") from None


@dataclass
class MpiOutcome(Outcome):
    """`code`: mpirun's own exit code, which is that of the rank that failed, or MPI's. `raised_by`: the rank whose
    function was the first to raise."""

    code: int = 0
    raised_by: int | None = None

    @property
    def exit_code(self) -> int:
        return self.code or super().exit_code

    @property
    def raised(self) -> int | None:
        return self.raised_by


class MpiJob(Job):
    """mpirun under a keeper, as the only process of a job. Its output is split by rank if the labels are known, otherwise
    passed on unchanged."""

    def __init__(self, start: mpi_flavours.LaunchPlan, env: Mapping[str, str], output: Output):
        mpirun = RankSpec(0, start.words, {}, notes_calls=False)
        super().__init__([LocalRanks([mpirun], env)], output, outcome=MpiOutcome())
        self._labels = start.labels

    def _stream(self, rank: int, name: str) -> RankStream | LabelledStream:
        if self._labels is not None:
            return LabelledStream(self._labels, self._output, name)
        return RankStream("", getattr(self._output, name), None, self._output.timestamp)

    def _called(self, rank: int) -> str:
        return "mpirun"

    def _handle_exit(self, site, rank: int, code: int, asked: bool) -> None:
        if code:
            self._outcome.code = shell_code(code)
            self._outcome.problem = f"horovodrun: mpirun failed with exit code {shell_code(code)}\n"

    def _handle_loss(self, site, text: str) -> None:
        self._outcome.problem = f"horovodrun: {text}\n"
