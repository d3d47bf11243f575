"""A store that the launcher's rank 0 serves for as long as its process lives, for launchers without a store.

Like a launcher's store it serves every init() of every part of the ranks. The ranks learn its address from a variable
(HOROVOD_STORE=rank0://HOST:PORT, with a secret that all of them were given) or over the launcher's PMI-1 (pmi.py). Each
other process keeps a connection to the store while it lives, and the process of rank 0 stays at its exit until no
connection is left, as the others may be in an init() without it. Used on the thread that runs init().
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import logging
import os
import socket
import sys
from collections.abc import Mapping

from hvd_core._base.sockets import BootstrapError, BootstrapTimeout, Deadline, named_address, split_address
from hvd_core._bootstrap.launchers.identity import RANK0_SCHEME, Identity
from hvd_core._bootstrap.rendezvous.base import FAREWELL_SECONDS, Rendezvous, RendezvousMethod
from hvd_core._bootstrap.rendezvous.launcher_store import PersistentRendezvous, next_count
from hvd_core._bootstrap.store import StoreClient, StoreServer

_log = logging.getLogger("horovod")
# Of a launcher's rank: it has connected to the store, and its process has ended (set by its last will).
_CONNECTED, _GONE = "hvd/rank0-store/connected/{}", "hvd/rank0-store/gone/{}"
# By process and address: a forked child has neither the server nor the right to speak to the process manager.
_stores: dict[tuple[int, str], Rank0Store] = {}


class Rank0Store:
    """The store of the launcher's rank 0, as each of its processes sees it.

    Args:
        address, secret: of the store; 'tcp://host:port'.
        ranks: how many the launcher has started.
        server: of the store in rank 0's process, else None.
        stay_s: how long that process may have to stay at its exit.
        all_come: whether each rank connects.
    """

    def __init__(
        self,
        address: str,
        secret: bytes,
        ranks: int,
        server: StoreServer | None = None,
        stay_s: float = 0.0,
        all_come: bool = False,
    ) -> None:
        self.address, self.secret, self.server = address, secret, server
        self._ranks, self._stay_s, self._all_come = ranks, stay_s, all_come
        self._held: StoreClient | None = None
        if server is not None:
            # Registered before the exit function of init(), and so called after it.
            atexit.register(self._stay, os.getpid())

    def hold(self, rank: int, deadline: Deadline) -> None:
        """Keeps the store until this process ends. Raises BootstrapError, OSError."""
        if self.server is None and self._held is None:
            held = StoreClient(self.address, self.secret, rank, deadline=deadline)
            held.set_last_will(_GONE.format(rank), b"")
            held.set(_CONNECTED.format(rank), b"")
            self._held = held

    def _stay(self, pid: int) -> None:
        """At the exit of rank 0's process, whose engine has ended: waits until the other processes have ended, too."""
        if pid != os.getpid():
            return
        failed = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        # After an exception has ended the program of rank 0, its store stays only so long that the others read why.
        deadline = Deadline(min(self._stay_s, FAREWELL_SECONDS) if failed else self._stay_s)
        with contextlib.suppress(BootstrapError, OSError):
            client = StoreClient(self.address, self.secret, 0, deadline=deadline)
            for rank in range(1, self._ranks):
                try:
                    client.get(_CONNECTED.format(rank), deadline.left() if self._all_come else 0)
                except BootstrapTimeout:
                    continue
                client.get(_GONE.format(rank), deadline.left())


def known(address: str) -> Rank0Store | None:
    """The store that an earlier init() of this process has found; ``address``: any text that names it."""
    return _stores.get((os.getpid(), address))


def remember(address: str, store: Rank0Store) -> None:
    _stores[os.getpid(), address] = store


class FixedAddress(RendezvousMethod):
    """The method 'rank 0': HOROVOD_STORE=rank0://HOST:PORT."""

    def find_store(
        self, identity: Identity, environ: Mapping[str, str], deadline: Deadline
    ) -> tuple[Identity, Rendezvous]:
        count = next_count(identity)
        store = self._store(identity, environ, deadline)
        return identity, PersistentRendezvous(identity, store.address, store.secret, count, store)

    def attend(self, identity: Identity, environ: Mapping[str, str], deadline: Deadline) -> None:
        self._store(identity, environ, deadline)

    def _store(self, identity: Identity, environ: Mapping[str, str], deadline: Deadline) -> Rank0Store:
        whole = identity.whole
        assert whole.store is not None and whole.secret is not None and whole.size is not None
        address = "tcp://" + whole.store.removeprefix(RANK0_SCHEME)
        found = known(address)
        if found is None:
            server = _serve_at(address, whole.secret, environ) if whole.rank == 0 else None
            found = Rank0Store(address, whole.secret, whole.size, server, deadline.seconds)
            remember(address, found)
        return found


def _serve_at(address: str, secret: bytes, environ: Mapping[str, str]) -> StoreServer:
    host, port = split_address(address)
    try:
        return StoreServer(host, secret, port)
    except socket.gaierror as error:
        raise BootstrapError(
            f"HOROVOD_STORE={RANK0_SCHEME}{host}:{port}: rank 0 cannot look up {host!r} ({error}). It must be a name or "
            "an address of the host of rank 0."
        ) from error
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            # The name of a service, or an address that is translated on the way: it leads here, but no interface has it.
            return StoreServer(_address_behind(host, environ), secret, port)
        raise BootstrapError(
            f"HOROVOD_STORE={RANK0_SCHEME}{host}:{port}: rank 0 cannot serve the store there: {error.strerror}. Choose "
            "another port; two jobs on one host need two."
        ) from error


def _address_behind(host: str, environ: Mapping[str, str]) -> str:
    """The address to listen on for a name that leads to this host without being one of its addresses."""
    names = [name.strip() for name in environ.get("HOROVOD_GLOO_IFACE", "").split(",") if name.strip()]
    for name in names:
        found = named_address(name)
        if found is not None:
            return found
    _log.warning(
        "HOROVOD_STORE=%s%s: no interface of rank 0's host has that address (%s), so its store listens on all "
        "interfaces. Name the one that leads to the other hosts in HOROVOD_GLOO_IFACE.",
        RANK0_SCHEME,
        host,
        f"HOROVOD_GLOO_IFACE={','.join(names)} has none either" if names else "it may be that of a service",
    )
    return "0.0.0.0"
