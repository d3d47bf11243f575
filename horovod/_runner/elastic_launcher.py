"""Starts an elastic job of horovodrun (elastic_driver.py runs it). Blocks its thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from horovod._runner.elastic_discovery import FixedHosts, HostDiscovery, HostDiscoveryScript, HostNames
from horovod._runner.elastic_driver import ElasticJob
from horovod._runner.environment import backend_environment, remote_environment
from horovod._runner.hosts import slots_by_host, store_place
from horovod._runner.job import Outcome
from horovod._runner.launch_spec import LaunchSpec, check_command, check_encryption_library, check_proc
from horovod._runner.local_ranks import LocalRanks
from horovod._runner.output import Output
from horovod._runner.remote_ranks import RemoteRanks, RemoteShell, agent_words
from horovod._runner.site import RankSpec
from hvd_core._config.settings import encryption_wanted

if TYPE_CHECKING:
    from hvd_core._bootstrap.store import StoreServer


class Starter:
    """Makes the sites of workers and the stores of worlds."""

    def __init__(self, spec: LaunchSpec) -> None:
        self._spec = spec
        self._encrypted = encryption_wanted(spec.env)
        self._env = {**spec.env, **backend_environment(spec.env), "HOROVOD_ELASTIC": "1"}
        self._shell = RemoteShell.of(spec)
        self.names = HostNames(self._shell.resolve)

    def start(self, number: int, host: str) -> LocalRanks | RemoteRanks:
        from hvd_core._bootstrap.driver_channel import DESCRIPTOR

        spec, function = self._spec, self._spec.function
        own = {"HOROVOD_HOSTNAME": host}
        if function is not None:
            function.add(number)
        if host == self.names.here:
            keep = () if function is None else function.descriptors(number)
            own |= {} if function is None else function.variables(number)
            return LocalRanks([RankSpec(number, spec.command, own, keep, DESCRIPTOR)], self._env)
        words = self._shell.command(host, agent_words(spec.python_there))
        env = remote_environment(self._env)
        return RemoteRanks(host, words, spec.command, {number: own}, env, None, function, DESCRIPTOR)

    def ended(self, number: int) -> None:
        """No process of a worker is left."""
        if self._spec.function is not None:
            self._spec.function.drop_if_empty(number)

    def open_store(self, hosts: Sequence[str], secret: bytes) -> tuple[StoreServer, Mapping[str, str], str]:
        from hvd_core._base.sockets import join_address
        from hvd_core._bootstrap.store import StoreServer

        others = [host for host in hosts if host != self.names.here]
        if others and self._encrypted:
            check_encryption_library()
        place = store_place(others, self._spec.store_interfaces, source=self.names.source)
        server = StoreServer(host=place.listen, secret=secret)
        port = int(server.address.rpartition(":")[2])
        addresses = {host: join_address(place.remote.get(host, place.local), port) for host in hosts}
        return server, addresses, join_address(place.local, port)


def host_source(spec: LaunchSpec) -> HostDiscovery:
    """Where the hosts of an elastic job come from."""
    if spec.discovery_script is not None:
        return HostDiscoveryScript(spec.discovery_script, spec.slots_per_host)
    return FixedHosts(slots_by_host(spec.hosts))


def run_elastic_job(spec: LaunchSpec, started: Callable[[ElasticJob], None]) -> Outcome:
    """Runs an elastic job, and returns when none of its processes is left. Arguments and exceptions: launcher.run_job().
    The results of a function are those of workers."""
    limits = spec.elastic
    assert limits is not None
    check_command(spec.command)
    check_proc()
    starter = Starter(spec)
    output = Output(limits.most or limits.first, spec.output_folder, spec.timestamps)
    job = ElasticJob(
        limits,
        host_source(spec),
        starter.start,
        starter.ended,
        starter.open_store,
        starter.names,
        output,
        spec.verbose,
    )
    started(job)
    return job.run()
