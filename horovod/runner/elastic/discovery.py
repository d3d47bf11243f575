"""Sources of hosts, under the names of the original: HostDiscovery, HostDiscoveryScript, FixedHosts."""

from horovod._runner.elastic.discovery import FixedHosts, HostDiscovery, HostDiscoveryScript

__all__ = ["FixedHosts", "HostDiscovery", "HostDiscoveryScript"]
