"""Makes an elastic job of horovodrun's arguments and runs it (elastic_driver.py). Blocks its thread."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence

from horovod._runner.arguments import check_elastic, numbers
from horovod._runner.elastic_discovery import FixedHosts, HostDiscovery, HostDiscoveryScript, HostNames
from horovod._runner.elastic_driver import ElasticJob
from horovod._runner.elastic_membership import Limits
from horovod._runner.environment import (
    GRACE,
    backend_environment,
    job_environment,
    remote_environment,
)
from horovod._runner.functions import FunctionMemory
from horovod._runner.hosts import check_interfaces, parse_host_files, parse_hosts, slots_by_host, store_place
from horovod._runner.job import Outcome
from horovod._runner.local_ranks import LocalRanks, RankSpec
from horovod._runner.output import Output
from horovod._runner.remote_ranks import RemoteRanks, RemoteShell, agent_words
from hvd_core._config.environment import encryption_wanted, positive_seconds, seconds_of

_TIMEOUT_S = 600
_GRACE_S = 600
_INIT_S = 600


class _Starter:
    """Makes the sites of workers and the stores of worlds."""

    def __init__(
        self,
        args: argparse.Namespace,
        command: Sequence[str],
        start_s: float,
        extra_env: Mapping[str, str],
        function: FunctionMemory | None,
    ) -> None:
        from horovod._runner.job import name_list

        self._command, self._function = command, function
        env = {**job_environment(os.environ, args), **extra_env}
        self._encrypted = encryption_wanted(env)
        self._env = {**env, **backend_environment(env), "HOROVOD_ELASTIC": "1"}
        silence_s = seconds_of(env, "HOROVOD_GLOO_TIMEOUT_SECONDS")
        template = args.remote_shell or env.get("HOROVOD_REMOTE_SHELL")
        self._shell = RemoteShell(template, args.ssh_port, args.ssh_identity_file, start_s, silence_s)
        self._python = args.remote_python or env.get("HOROVOD_REMOTE_PYTHON") or sys.executable or "python3"
        self.names = HostNames(self._shell.resolve)
        self._named = sorted(args.nics) if args.nics else name_list(env.get("HOROVOD_GLOO_IFACE"))

    def start(self, number: int, host: str) -> LocalRanks | RemoteRanks:
        from hvd_core._bootstrap.driver_channel import DESCRIPTOR

        own, function = {"HOROVOD_HOSTNAME": host}, self._function
        if function is not None:
            function.add(number)
        if host == self.names.here:
            keep = () if function is None else function.descriptors(number)
            own |= {} if function is None else function.variables(number)
            return LocalRanks([RankSpec(number, self._command, own, keep, DESCRIPTOR)], self._env)
        words = self._shell.command(host, agent_words(self._python))
        env = remote_environment(self._env)
        return RemoteRanks(host, words, self._command, {number: own}, env, None, function, DESCRIPTOR)

    def ended(self, number: int) -> None:
        """No process of a worker is left."""
        if self._function is not None:
            self._function.drop_if_empty(number)

    def open_store(self, hosts: Sequence[str], secret: bytes) -> tuple[object, Mapping[str, str], str]:
        from horovod._runner.job import check_library
        from hvd_core._base.sockets import join_address
        from hvd_core._bootstrap.store import StoreServer

        others = [host for host in hosts if host != self.names.here]
        if others and self._encrypted:
            check_library()
        place = store_place(others, self._named, source=self.names.source)
        server = StoreServer(host=place.listen, secret=secret)
        port = int(server.address.rpartition(":")[2])
        addresses = {host: join_address(place.remote.get(host, place.local), port) for host in hosts}
        return server, addresses, join_address(place.local, port)


def hosts_of(args: argparse.Namespace) -> HostDiscovery:
    """Where the hosts of the job come from. Raises ValueError, OSError."""
    if args.host_discovery_script is not None:
        return HostDiscoveryScript(args.host_discovery_script, args.slots)
    first, _, most = numbers(args)
    text = parse_host_files(args.hostfile) if args.hostfile else args.hosts or f"localhost:{most or first}"
    return FixedHosts(slots_by_host(parse_hosts(text)))


def run_elastic_job(
    args: argparse.Namespace,
    command: Sequence[str],
    started: Callable[[ElasticJob], None],
    extra_env: Mapping[str, str] | None = None,
    function: FunctionMemory | None = None,
) -> Outcome:
    """Runs `command` in as many processes as there are slots, and returns when no process of it is left.

    `started` is called with the job before any process exists. `function`: as for job.run_job(); its results are those
    of workers. Raises ValueError, OSError.
    """
    from horovod._runner.job import check_command, check_proc, start_timeout

    check_elastic(args)
    if args.nics:
        check_interfaces(args.nics)
    first, least, most = numbers(args)
    environ = os.environ
    start_s = start_timeout(args, environ)
    grace_s = args.preemption_grace
    if grace_s is None and environ.get(GRACE):
        grace_s = positive_seconds(environ[GRACE], GRACE)
    limits = Limits(
        first,
        least,
        most,
        args.elastic_timeout or seconds_of(environ, "HOROVOD_ELASTIC_TIMEOUT", _TIMEOUT_S),
        seconds_of(environ, "HOROVOD_ELASTIC_GRACE", _GRACE_S),
        start_s,
        args.reset_limit,
        None if args.cooldown_range is None else tuple(args.cooldown_range),
        args.spares or 0,
        start_s if args.start_timeout is not None else max(start_s, _INIT_S),
        grace_s,
        args.elastic_chaos,
    )
    check_command(command)
    check_proc()
    extra_env = {**(extra_env or {}), **({} if grace_s is None else {GRACE: str(grace_s)})}
    starter = _Starter(args, command, start_s, extra_env, function)
    output = Output(most or first, args.output_filename, bool(args.prefix_output_with_timestamp))
    job = ElasticJob(
        limits,
        hosts_of(args),
        starter.start,
        starter.ended,
        starter.open_store,
        starter.names,
        output,
        bool(args.verbose),
    )
    started(job)
    return job.run()
