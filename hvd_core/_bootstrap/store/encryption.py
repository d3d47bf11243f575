"""Encryption between hosts, HOROVOD_TLS=1: whether the user asks for it, and whether this process is able to do it.

The cryptography is that of the system's libcrypto; the native module opens it
(backends/wire_security/encryption.h). Any thread.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from hvd_core._base.native import load
from hvd_core._base.sockets import BootstrapError, split_address
from hvd_core._bootstrap.store.job_members import name_ranks
from hvd_core._config.settings import encryption_wanted


def wanted() -> bool:
    """Whether HOROVOD_TLS asks for it in this process. Raises ValueError for a text that is neither yes nor no."""
    return encryption_wanted(os.environ)


def problem() -> str:
    """Why this process cannot encrypt, and what to do; "" if it can."""
    return str(load().encryption_problem())


def applies_to(sock: socket.socket, is_rank: bool = True) -> bool:
    """Whether a connection to the store is encrypted: one that does not stay on this host. A rank whose host has no
    library connects all the same, because the other ranks shall learn the reason (check_ranks()). For another program
    that is an error, because no check follows."""
    if not wanted() or _stays_here(sock):
        return False
    if not is_rank and problem():
        raise BootstrapError(problem())
    return not problem()


def _stays_here(sock: socket.socket) -> bool:
    return _is_loopback(sock.getpeername()[0])


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def reached_by_others(host: str) -> bool:
    """Whether ``host``, the name or address of a store, is not on loopback. Then the job has several hosts."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return True  # the attempt to use the name says what is wrong with it
    return not all(_is_loopback(str(entry[4][0])) for entry in found)


def check_server(address: str) -> None:
    """Raises BootstrapError if this process serves the store of a job on several hosts, and cannot encrypt. The ranks of
    other hosts cannot join, and those of this host would wait for them. ``address``: of the store, 'tcp://host:port'."""
    if wanted() and reached_by_others(split_address(address)[0]) and problem():
        raise BootstrapError(f"this process serves the job's store, and {problem()}")


def required_by(variables: Mapping[str, str], host: str) -> bool:
    """Whether a program that is no rank must encrypt its connection to the store on ``host``. ``variables``: the ranks'.

    Raises BootstrapError if it must, and is not able to do it."""
    if not encryption_wanted(variables) or not reached_by_others(host):
        return False
    if problem():
        raise BootstrapError(problem())
    return True


def record() -> dict[str, Any]:
    """The part of this rank's record (hosts.gather_roster()) that check_ranks() reads."""
    return {"wanted": wanted(), "problem": problem() if wanted() else ""}


def check_ranks(records: Sequence[dict[str, Any]], hosts: Sequence[int], names: Sequence[str]) -> None:
    """Raises BootstrapError, on every rank, unless all ranks ask for the same and are able to do it.

    ``records``: record() of all ranks; ``hosts``, ``names``: index and name of each rank's host. In a job on one host
    nothing is encrypted."""
    asking = [rank for rank, record in enumerate(records) if record["wanted"]]
    if not asking:
        return
    others = [rank for rank, record in enumerate(records) if not record["wanted"]]
    if others:
        raise BootstrapError(
            "the ranks disagree about encryption between hosts: HOROVOD_TLS=1 is set for "
            f"{_named(asking, names)}, and not for {_named(others, names)}. Set it for all ranks or for no rank; "
            "mpirun passes a variable on if it is told to (Open MPI: -x HOROVOD_TLS)"
        )
    if len(set(hosts)) == 1:
        return
    for rank in asking:
        text = records[rank]["problem"]
        if text:
            raise BootstrapError(f"{_named([rank], names)}: {text}")


def refuse_readable_secret(several_hosts: bool, channel: str) -> None:
    """Raises BootstrapError if the connections would be encrypted with a secret that was sent in the clear.

    ``several_hosts``: whether the job has ranks on several hosts; ``channel``: over which rank 0 is about to send
    the secret, as a noun."""
    if wanted() and several_hosts:
        raise BootstrapError(
            f"HOROVOD_TLS=1: the job's secret would be sent to other hosts over {channel}, which does not encrypt it "
            "as a rule. Start with horovodrun, which sends it over ssh, or give all ranks "
            "HOROVOD_STORE=rank0://HOST:PORT and HOROVOD_SECRET_KEY"
        )


def _named(ranks: Sequence[int], names: Sequence[str]) -> str:
    hosts = list(dict.fromkeys(names[rank] for rank in ranks))
    shown = ", ".join(hosts[:4]) + (", ..." if len(hosts) > 4 else "")
    return f"{name_ranks(ranks)} (host {shown})"
