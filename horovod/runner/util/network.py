"""Addresses of this machine. Asks the kernel and the resolver; sends no packet. Any thread."""

import socket
from collections.abc import Iterable

from horovod._runner.hosts import is_local
from hvd_core._base.sockets import interface_address

__all__ = ["filter_local_addresses", "get_driver_ip", "get_local_host_addresses"]


def get_local_host_addresses() -> set[str]:
    """The addresses of all network interfaces."""
    return {address for _, name in socket.if_nameindex() if (address := interface_address(name)) is not None}


def filter_local_addresses(all_host_names: Iterable[str]) -> list[str]:
    """The names that do not mean this machine, in their order."""
    return [name for name in all_host_names if not is_local(name)]


def get_driver_ip(nics: Iterable[str]) -> str:
    """The address of the first of these interfaces that has one. Raises RuntimeError if there is no such address."""
    names = list(nics)
    for name in names:
        address = interface_address(name)
        if address is not None:
            return address
    raise RuntimeError(f"None of the network interfaces {', '.join(names)} has an address on this machine.")
