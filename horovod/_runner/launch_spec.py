"""One job, as the options of horovodrun or the arguments of horovod.run describe it.

A `LaunchSpec` is made once, from an argparse.Namespace, and never changes: the rest of the launcher knows neither
options nor hostfiles. It also holds what is checked on this machine before anything starts. Any thread.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from horovod._runner.arguments import (
    is_elastic,
    numbers,
    set_env_from_args,
)
from horovod._runner.elastic_membership import Limits
from horovod._runner.environment import GRACE, job_environment
from horovod._runner.functions import FunctionMemory
from horovod._runner.hosts import (
    HostInfo,
    SlotInfo,
    check_interfaces,
    get_host_assignments,
    merge_hosts,
    parse_hosts,
    read_hostfile,
)
from hvd_core._config.settings import positive_seconds, read, seconds_of

_INIT_S = 600.0  # for workers of elastic jobs to come to init()


@dataclass(frozen=True)
class Placement:
    """The host of each rank. `here`: the host name of the slots on this machine, None if it has no slots."""

    slots: list[SlotInfo]
    here: str | None

    @property
    def local(self) -> list[SlotInfo]:
        """The ranks on this machine."""
        return [slot for slot in self.slots if slot.hostname == self.here]

    @property
    def remote(self) -> dict[str, list[SlotInfo]]:
        """The ranks on each other host."""
        hosts: dict[str, list[SlotInfo]] = {}
        for slot in self.slots:
            if slot.hostname != self.here:
                hosts.setdefault(slot.hostname, []).append(slot)
        return hosts

    @property
    def counts(self) -> dict[str, int]:
        """The number of ranks of each host."""
        return Counter(slot.hostname for slot in self.slots)

    def __str__(self) -> str:
        return ", ".join(f"{host} ({count})" for host, count in self.counts.items())


@dataclass(frozen=True)
class LaunchSpec:
    """One job.

    Attributes:
        command: the words of the command that each rank executes.
        num_proc: the number of ranks; of an elastic job, with which it begins.
        hosts: the hosts and their slots in the order of preference; empty if a discovery script finds them.
        env: the variables of all ranks, without their places in the job.
        start_timeout_s: seconds for hosts to answer, and for the ranks to find each other.
        interfaces: names of the network interfaces to use; empty for an automatic choice.
        elastic: the limits of an elastic job; None for a job whose number of processes is fixed.
        function: the memory from which the ranks read a function, and to which they write their results.
    """

    command: Sequence[str]
    num_proc: int
    hosts: Sequence[HostInfo]
    env: Mapping[str, str]
    start_timeout_s: float
    interfaces: Sequence[str] = ()
    elastic: Limits | None = None
    function: FunctionMemory | None = None
    # As horovodrun's options of these names; None where not given.
    verbose: bool | None = None
    output_filename: str | None = None
    prefix_output_with_timestamp: bool | None = None
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    remote_shell: str | None = None
    remote_python: str | None = None
    use_mpi: bool | None = None
    use_gloo: bool | None = None
    mpi_args: str | None = None
    binding_args: str | None = None
    tcp_flag: bool | None = None
    host_discovery_script: str | None = None
    slots: int | None = None

    @classmethod
    def from_options(
        cls,
        options: argparse.Namespace,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
    ) -> LaunchSpec:
        """Makes a job of the options of horovodrun.

        Args:
            options: all options, None where not given, which check_options() has accepted.
            command: the words to execute on each rank.
            env: variables of the ranks in addition to those of this process and of the options.

        Raises:
            ValueError: the number of processes, the hosts or the interfaces are not valid.
            OSError: the hostfile cannot be read.
        """
        elastic = is_elastic(options)
        first, _, most = numbers(options)
        if first < 1:
            raise ValueError(f"The number of processes must be at least 1, found -np {first}.")
        interfaces = sorted(options.nics or ())
        check_interfaces(interfaces)
        grace_s = _preemption_grace_s(options) if elastic else None
        variables = {
            **job_environment(os.environ, _variables(options, interfaces)),
            **(env or {}),
            **({} if grace_s is None else {GRACE: str(grace_s)}),
        }
        timeout_s = start_timeout(options, variables)
        return cls(
            command=command,
            num_proc=first,
            hosts=_hosts(options, (most or first) if elastic else first),
            env=variables,
            start_timeout_s=timeout_s,
            interfaces=interfaces,
            elastic=_limits(options, timeout_s, grace_s) if elastic else None,
            **{name: getattr(options, name) for name in _SAME},
        )

    def place(self) -> Placement:
        """The host of each rank of a job that is not elastic. Asks the resolver. Raises ValueError for too few slots."""
        hosts, here = merge_hosts(self.hosts)
        return Placement(get_host_assignments(hosts, self.num_proc), here)

    @property
    def store_interfaces(self) -> list[str]:
        """Where the store of the rendezvous may listen: interfaces, networks or addresses. Empty: an automatic choice."""
        named = (part.strip() for part in self.env.get("HOROVOD_GLOO_IFACE", "").split(","))
        return list(self.interfaces) or [name for name in named if name]

    @property
    def ssh_options(self) -> list[str]:
        """Of --ssh-port and --ssh-identity-file."""
        given = {"-p": self.ssh_port, "-i": self.ssh_identity_file}
        return [word for flag, value in given.items() if value is not None for word in (flag, str(value))]

    @property
    def python_there(self) -> str:
        """The Python of the agents on other hosts."""
        return self.remote_python or self.env.get("HOROVOD_REMOTE_PYTHON") or sys.executable or "python3"


def split_words(name: str, text: str | None) -> list[str]:
    """The words of an option. Raises ValueError that names it."""
    try:
        return shlex.split(text or "")
    except ValueError as error:
        raise ValueError(f"{name}: {text!r} cannot be split into words: {error}.") from None


# The fields that are options.
_SAME = [field.name for field in fields(LaunchSpec)]
_SAME = _SAME[_SAME.index("verbose") :]


def start_timeout(options: argparse.Namespace, environ: Mapping[str, str]) -> float:
    """Seconds for the processes to find each other. Raises ValueError that names the option or the variable."""
    if options.start_timeout is not None:
        return positive_seconds(str(options.start_timeout), "--start-timeout")
    return seconds_of(environ, "HOROVOD_START_TIMEOUT")


def _variables(options: argparse.Namespace, interfaces: Sequence[str]) -> dict[str, str]:
    """The variables that the options set on the ranks.

    Not set: OMP_NUM_THREADS and CPU binding (the caller's choice), HOROVOD_CPU_OPERATIONS (it would choose a backend),
    HOROVOD_GLOO_IFACE and NCCL_SOCKET_IFNAME unless interfaces were named.
    """
    env: dict[str, str] = {}
    set_env_from_args(env, options)
    if options.start_timeout is not None:
        env["HOROVOD_START_TIMEOUT"] = str(options.start_timeout)
    if options.tcp_flag:
        env["NCCL_IB_DISABLE"] = "1"
    if interfaces:
        env["HOROVOD_GLOO_IFACE"] = interfaces[0]
        env["NCCL_SOCKET_IFNAME"] = ",".join(interfaces)
    return env


def _hosts(options: argparse.Namespace, slots_here: int) -> list[HostInfo]:
    if options.host_discovery_script is not None:
        return []
    if options.hosts and options.hostfile:
        raise ValueError("Give either hosts or a hostfile, not both.")
    if options.hostfile:
        return read_hostfile(options.hostfile)
    return parse_hosts(options.hosts) if options.hosts else [HostInfo("localhost", slots_here)]


def _preemption_grace_s(options: argparse.Namespace) -> float | None:
    given: int | None = options.preemption_grace
    return read(GRACE) if given is None else given


def _limits(options: argparse.Namespace, start_s: float, grace_s: float | None) -> Limits:
    first, least, most = numbers(options)
    timeout_s = options.elastic_timeout or seconds_of(os.environ, "HOROVOD_ELASTIC_TIMEOUT")
    return Limits(
        first=first,
        least=least,
        most=most,
        timeout_s=timeout_s,
        grace_s=seconds_of(os.environ, "HOROVOD_ELASTIC_GRACE"),
        start_s=start_s,
        reset_limit=options.reset_limit,
        cooldown=None if options.cooldown_range is None else tuple(options.cooldown_range),
        spares=options.spares or 0,
        init_s=start_s if options.start_timeout is not None else max(start_s, _INIT_S),
        preemption_s=grace_s,
        chaos_s=options.elastic_chaos,
    )


# ------------------------------------------------------------------------------------- checks before anything starts


def check_encryption_library() -> None:
    """Raises ValueError if this process cannot encrypt. It serves the store of a job that encrypts between hosts."""
    from hvd_core._bootstrap.store.encryption import problem

    if text := problem():
        raise ValueError(text)


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
