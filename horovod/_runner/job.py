"""Runs one job whose ranks horovodrun starts itself, from checked arguments to its end (mpi_job.py: ranks of mpirun).

Finds the host that is this machine, starts the store of the rendezvous, gives each rank its environment, and runs the
processes. Blocks its thread.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from horovod._runner.addresses import store_place
from horovod._runner.ended_ranks import EndedRanks
from horovod._runner.env import (
    SECRET,
    backend_environment,
    job_environment,
    rank_environment,
    remote_environment,
    store_environment,
)
from horovod._runner.function_memory import FunctionMemory
from horovod._runner.hosts import (
    SlotInfo,
    check_interfaces,
    get_host_assignments,
    merge_hosts,
    parse_host_files,
    parse_hosts,
)
from horovod._runner.introduction import no_jsrun
from horovod._runner.local_ranks import LocalRanks, RankSpec
from horovod._runner.output import Output
from horovod._runner.processes import Job, Outcome
from horovod._runner.remote_ranks import RemoteRanks
from horovod._runner.remote_shell import RemoteShell, agent_words
from hvd_core._config.environment import encryption_wanted, positive_seconds, seconds_of


def check_supported(args: argparse.Namespace) -> None:
    """Raises NotImplementedError that names the option if this version does not support it."""
    if getattr(args, "use_jsrun", None):
        raise NotImplementedError(no_jsrun(os.environ))


@dataclass(frozen=True)
class Placement:
    """The host of each rank. `here`: the host name of the slots on this machine, None if it has no slots."""

    slots: list[SlotInfo]
    here: str | None

    def local(self) -> list[SlotInfo]:
        return [slot for slot in self.slots if slot.hostname == self.here]

    def remote(self) -> dict[str, list[SlotInfo]]:
        hosts: dict[str, list[SlotInfo]] = {}
        for slot in self.slots:
            if slot.hostname != self.here:
                hosts.setdefault(slot.hostname, []).append(slot)
        return hosts


def assign_slots(args: argparse.Namespace) -> Placement:
    """The host of each rank. Raises ValueError for wrong hosts or counts, OSError for the hostfile."""
    if args.num_proc < 1:
        raise ValueError(f"The number of processes must be at least 1, found -np {args.num_proc}.")
    if args.hosts and args.hostfile:
        raise ValueError("Give either hosts or a hostfile, not both.")
    text = parse_host_files(args.hostfile) if args.hostfile else args.hosts or f"localhost:{args.num_proc}"
    hosts, here = merge_hosts(parse_hosts(text))
    return Placement(get_host_assignments(hosts, args.num_proc), here)


def run_job(
    args: argparse.Namespace,
    command: Sequence[str],
    started: Callable[[Job], None],
    extra_env: dict[str, str] | None = None,
    function: FunctionMemory | None = None,
) -> Outcome:
    """Runs `command` once per rank and returns when no process of it is left.

    `started` is called with the Job before any process exists, for signal handlers. `function`: the memory from which the
    ranks read a function, and to which they write their results. Raises ValueError, OSError.
    """
    placement = assign_slots(args)
    if args.nics:
        check_interfaces(args.nics)
    env = {**job_environment(os.environ, args), **(extra_env or {})}
    encrypted = encryption_wanted(env)
    env |= backend_environment(env)
    timeout_s = start_timeout(args, env)
    if placement.local():
        check_command(command)
        check_proc()
    remote = placement.remote()
    shell = None
    if remote and encrypted:
        check_library()
    if remote:
        silence_s = seconds_of(env, "HOROVOD_GLOO_TIMEOUT_SECONDS")
        template = args.remote_shell or env.get("HOROVOD_REMOTE_SHELL")
        shell = RemoteShell(template, args.ssh_port, args.ssh_identity_file, timeout_s, silence_s)
    named = sorted(args.nics) if args.nics else name_list(env.get("HOROVOD_GLOO_IFACE"))
    place = store_place(list(remote), named, shell.resolve if shell else str)
    output = Output(len(placement.slots), args.output_filename, bool(args.prefix_output_with_timestamp))
    # Imported late, because the parser, --version and wrong arguments need no engine.
    from hvd_core._base.sockets import join_address
    from hvd_core._bootstrap.store import StoreServer

    secret = secrets.token_bytes(32)
    server = StoreServer(host=place.listen, secret=secret)
    try:
        port = int(server.address.rpartition(":")[2])
        sites: list[LocalRanks | RemoteRanks] = []
        here = {**env, **store_environment(join_address(place.local, port), secret)}
        if placement.local():
            sites.append(LocalRanks([_spec(slot, command, function) for slot in placement.local()], here))
        python = args.remote_python or env.get("HOROVOD_REMOTE_PYTHON") or sys.executable or "python3"
        for host, slots in remote.items():
            address = join_address(place.remote[host], port)
            common = {**remote_environment(env), **store_environment(address, secret)}
            ranks = {slot.rank: rank_environment(slot) for slot in slots}
            words = shell.command(host, agent_words(python))
            sites.append(RemoteRanks(host, words, command, ranks, common, address, function))
        if args.verbose:
            _describe(output, placement, here, server.address)
        ends = EndedRanks(join_address(place.local, port), secret)
        job = Job(sites, output, bool(args.verbose), timeout_s, ends=ends)
        started(job)
        return job.run()
    finally:
        server.close()


def _spec(slot: SlotInfo, command: Sequence[str], function: FunctionMemory | None) -> RankSpec:
    variables = rank_environment(slot)
    if function is None:
        return RankSpec(slot.rank, command, variables)
    variables.update(function.variables(slot.rank))
    return RankSpec(slot.rank, command, variables, function.descriptors(slot.rank))


def check_library() -> None:
    """Raises ValueError if this process cannot encrypt. It serves the store of a job that encrypts between hosts."""
    from hvd_core._bootstrap.encryption import problem

    if problem():
        raise ValueError(problem())


def check_proc() -> None:
    """Raises ValueError on a host without /proc, where no process of a job could be found and ended."""
    if not os.path.isdir("/proc/self/fd"):
        raise ValueError(
            "/proc is not mounted on this host, and horovodrun needs it: mount -t proc proc /proc"
        )


def check_command(command: Sequence[str]) -> None:
    """Raises ValueError if the command cannot be executed here, so that the user sees one message and not one per
    rank."""
    if shutil.which(command[0]) is not None:
        return
    hint = ""
    if command[0].endswith(".py") and os.path.exists(command[0]):
        hint = f" It is a Python file that is not executable; did you mean: python {command[0]}"
    raise ValueError(f"The command {command[0]!r} was not found or cannot be executed.{hint}")


def start_timeout(args: argparse.Namespace, env: Mapping[str, str]) -> float:
    """Seconds for the processes to find each other. Raises ValueError that names the option or the variable."""
    if args.start_timeout is not None:
        return positive_seconds(str(args.start_timeout), "--start-timeout")
    return seconds_of(env, "HOROVOD_START_TIMEOUT")


def name_list(text: str | None) -> list[str]:
    """ "a, b" as a list."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _describe(output: Output, placement: Placement, env: dict[str, str], store: str) -> None:
    counts: dict[str, int] = {}
    for slot in placement.slots:
        counts[slot.hostname] = counts.get(slot.hostname, 0) + 1
    where = ", ".join(f"{host} ({count})" for host, count in counts.items())
    output.stderr.note(f"horovodrun: {len(placement.slots)} processes on {where}, store {store}")
    for name in sorted(env):
        if name.startswith("HOROVOD_") and name != SECRET:
            output.stderr.note(f"horovodrun: {name}={env[name]}")
