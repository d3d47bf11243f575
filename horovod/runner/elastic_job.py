"""Makes an elastic job of horovodrun's arguments and runs it (driver.py). Blocks its thread."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence

from horovod.runner.addresses import store_place
from horovod.runner.elastic_discovery import FixedHosts, HostDiscovery, HostDiscoveryScript
from horovod.runner.elastic_driver import ElasticJob
from horovod.runner.elastic_limits import Limits
from horovod.runner.env import (
    backend_environment,
    job_environment,
    remote_environment,
)
from horovod.runner.hosts import check_interfaces, is_local, parse_host_files, parse_hosts
from horovod.runner.local_ranks import LocalRanks, RankSpec
from horovod.runner.output import Output
from horovod.runner.processes import Outcome
from horovod.runner.remote_ranks import RemoteRanks
from horovod.runner.remote_shell import RemoteShell, agent_words

_TIMEOUT_S = 600
_GRACE_S = 600
_INIT_S = 600


def is_elastic(args: argparse.Namespace) -> bool:
    """Whether the arguments ask for an elastic job."""
    return args.min_num_proc is not None or args.host_discovery_script is not None


def check_elastic(args: argparse.Namespace) -> None:
    """Raises ValueError for options of elastic jobs that make no sense."""
    if not is_elastic(args):
        for dest, option in (
            ("max_num_proc", "--max-np"),
            ("slots", "--slots-per-host"),
            ("elastic_timeout", "--elastic-timeout"),
            ("reset_limit", "--reset-limit"),
            ("cooldown_range", "--blacklist-cooldown-range"),
            ("spares", "--spares"),
        ):
            if getattr(args, dest, None) is not None:
                raise ValueError(f"{option} is for elastic jobs. Add --min-np or --host-discovery-script.")
        return
    if args.use_mpi or args.use_jsrun:
        raise ValueError(
            "--mpi cannot start an elastic job: MPI ends all processes when one dies. Leave it out; horovodrun starts "
            "the processes itself."
        )
    first, least, most = _numbers(args)
    if least < 1:
        raise ValueError(f"--min-np must be at least 1, found {least}.")
    if first < least:
        raise ValueError(
            f"-np {first} is less than --min-np {least}: a job cannot begin with fewer processes."
        )
    if most is not None and most < first:
        raise ValueError(f"--max-np {most} is less than -np {first}: a job cannot begin with more processes.")
    for name, value, low in (
        ("--slots-per-host", args.slots, 1),
        ("--elastic-timeout", args.elastic_timeout, 1),
        ("--reset-limit", args.reset_limit, 0),
        ("--spares", args.spares, 0),
    ):
        if value is not None and value < low:
            raise ValueError(f"{name} must be at least {low}, found {value}.")
    if args.spares and most is None:
        raise ValueError(
            "--spares needs --max-np: without it all slots are used, and none is left for a spare process."
        )
    if args.cooldown_range is not None:
        low, high = args.cooldown_range
        if not 1 <= low < high <= 3600:
            raise ValueError(
                f"--blacklist-cooldown-range takes two numbers of seconds, 1 <= MIN < MAX <= 3600, found {low} {high}."
            )


def _numbers(args: argparse.Namespace) -> tuple[int, int, int | None]:
    first = args.num_proc if args.num_proc is not None else args.min_num_proc
    least = args.min_num_proc if args.min_num_proc is not None else first
    return first, least, args.max_num_proc


def _source(args: argparse.Namespace) -> HostDiscovery:
    if args.host_discovery_script is not None:
        return HostDiscoveryScript(args.host_discovery_script, args.slots)
    first, _, most = _numbers(args)
    text = parse_host_files(args.hostfile) if args.hostfile else args.hosts or f"localhost:{most or first}"
    return FixedHosts({host.hostname: host.slots for host in parse_hosts(text)})


class _Starter:
    """Makes the sites of workers and the stores of worlds. Remembers which names are this machine."""

    def __init__(self, args: argparse.Namespace, command: Sequence[str], start_s: int) -> None:
        from horovod.runner.job import name_list, seconds

        self._args, self._command = args, command
        env = job_environment(os.environ, args)
        self._env = {**env, **backend_environment(env), "HOROVOD_ELASTIC": "1"}
        self._is_local: dict[str, bool] = {}
        self._here: str | None = None
        silence_s = seconds("HOROVOD_GLOO_TIMEOUT_SECONDS", env.get("HOROVOD_GLOO_TIMEOUT_SECONDS"))
        template = args.remote_shell or env.get("HOROVOD_REMOTE_SHELL")
        self._shell = RemoteShell(template, args.ssh_port, args.ssh_identity_file, start_s, silence_s)
        self._python = args.remote_python or env.get("HOROVOD_REMOTE_PYTHON") or sys.executable or "python3"
        self._named = sorted(args.nics) if args.nics else name_list(env.get("HOROVOD_GLOO_IFACE"))

    def merged(self, hosts: dict[str, int]) -> dict[str, int]:
        """The hosts with all names of this machine made one."""
        found: dict[str, int] = {}
        for name, slots in hosts.items():
            if name not in self._is_local:
                self._is_local[name] = is_local(name)
            if self._is_local[name]:
                name = self._here = self._here or name
            found[name] = found.get(name, 0) + slots
        return {name: slots for name, slots in found.items() if slots > 0}

    def start(self, number: int, host: str) -> LocalRanks | RemoteRanks:
        from hvd_core.bootstrap.driver_channel import DESCRIPTOR

        own = {"HOROVOD_HOSTNAME": host}
        if host == self._here:
            return LocalRanks([RankSpec(number, self._command, own, channel=DESCRIPTOR)], self._env)
        words = self._shell.command(host, agent_words(self._python))
        env = remote_environment(self._env)
        return RemoteRanks(host, words, self._command, {number: own}, env, None, channel=DESCRIPTOR)

    def open_store(self, hosts: Sequence[str], secret: bytes) -> tuple[object, Mapping[str, str], str]:
        from hvd_core.bootstrap.socket_io import join_address
        from hvd_core.bootstrap.store import StoreServer

        place = store_place([h for h in hosts if h != self._here], self._named, self._shell.resolve)
        server = StoreServer(host=place.listen, secret=secret)
        port = int(server.address.rpartition(":")[2])
        addresses = {host: join_address(place.remote.get(host, place.local), port) for host in hosts}
        return server, addresses, join_address(place.local, port)


def run_elastic_job(
    args: argparse.Namespace, command: Sequence[str], started: Callable[[ElasticJob], None]
) -> Outcome:
    """Runs `command` in as many processes as there are slots, and returns when no process of it is left.

    `started` is called with the job before any process exists. Raises ValueError, OSError.
    """
    from horovod.runner.job import check_command, check_proc, seconds

    check_elastic(args)
    if args.nics:
        check_interfaces(args.nics)
    first, least, most = _numbers(args)
    environ = os.environ
    start_s = (
        seconds("--start-timeout", args.start_timeout)
        if args.start_timeout is not None
        else seconds("HOROVOD_START_TIMEOUT", environ.get("HOROVOD_START_TIMEOUT"))
    )
    waited = args.elastic_timeout or environ.get("HOROVOD_ELASTIC_TIMEOUT")
    limits = Limits(
        first,
        least,
        most,
        seconds("HOROVOD_ELASTIC_TIMEOUT", waited, _TIMEOUT_S),
        seconds("HOROVOD_ELASTIC_GRACE", environ.get("HOROVOD_ELASTIC_GRACE"), _GRACE_S),
        start_s,
        args.reset_limit,
        None if args.cooldown_range is None else tuple(args.cooldown_range),
        args.spares or 0,
        start_s if args.start_timeout is not None else max(start_s, _INIT_S),
    )
    check_command(command)
    check_proc()
    starter = _Starter(args, command, start_s)
    output = Output(most or first, args.output_filename, bool(args.prefix_output_with_timestamp))
    job = ElasticJob(
        limits,
        _source(args),
        starter.start,
        starter.open_store,
        starter.merged,
        output,
        bool(args.verbose),
    )
    started(job)
    return job.run()
