"""Sources of hosts, under the names of the original: HostDiscovery, HostDiscoveryScript, FixedHosts."""

from horovod._runner.elastic_discovery import FixedHosts, HostDiscovery, HostDiscoveryScript

__all__ = ["FixedHosts", "HostDiscovery", "HostDiscoveryScript"]
