"""Hosts and slots, under the name that programs import. ``horovod._runner.hosts`` defines them. Any thread."""

from horovod._runner.hosts import (
    HostInfo,
    SlotInfo,
    get_host_assignments,
    parse_host_files,
    parse_hosts,
    slots_by_host,
)

__all__ = [
    "HostInfo",
    "SlotInfo",
    "get_host_assignments",
    "parse_host_files",
    "parse_hosts",
    "parse_hosts_and_slots",
]


def parse_hosts_and_slots(hosts: str) -> tuple[list[str], dict[str, int]]:
    """The names of "h1:2,h2:4", and the slots by name. Raises ValueError that names the wrong part."""
    found = parse_hosts(hosts)
    return [host.hostname for host in found], slots_by_host(found)
