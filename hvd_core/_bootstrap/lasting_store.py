"""A store that the launcher's rank 0 serves for as long as its process lives, for launchers without a store.

Like a launcher's store it serves every init() of every part of the ranks. The ranks learn its address from a variable
(HOROVOD_STORE=rank0://HOST:PORT, with a secret that all of them were given) or over the launcher's PMI-1, which is used
once per process. Each other process keeps a connection to the store while it lives, and the process of rank 0 stays at
its exit until no connection is left, as the others may be in an init() without it. Used on the thread that runs init().
"""

import atexit
import contextlib
import errno
import json
import logging
import os
import socket
import sys

from hvd_core._base.auth import new_secret
from hvd_core._base.sockets import BootstrapError, BootstrapTimeout, Deadline, split_address
from hvd_core._bootstrap import encryption
from hvd_core._bootstrap.pmi1 import Pmi1, finalize, own_host_name
from hvd_core._bootstrap.routes import address_towards, named_address
from hvd_core._bootstrap.store import StoreClient, StoreServer

_log = logging.getLogger("horovod")
SCHEME = "rank0://"
_NOT_OURS = (errno.EADDRNOTAVAIL,)
# A value has at most 1024 characters; the text is doubled on its way.
_LONGEST_ERROR = 400
# After an exception has ended the program of rank 0, its store stays so long only: the others read why.
_FAREWELL_S = 1.0
_FINALIZE_S = 5.0
# Of a launcher's rank: it has connected to the store, and its process has ended.
_HERE, _GONE = "hvd/lasting/here/{}", "hvd/lasting/gone/{}"
# The stores by process: a forked child has neither the server nor the right to speak to the process manager.
_known = {}
# The processes that have spoken to the process manager, also those whose rendezvous then failed.
_used = set()


class LastingStore:
    """``address`` ('tcp://host:port') and ``secret`` of the store; ``server`` in its process, else None. ``stay_s``: how
    long that process may have to stay at its exit. ``ranks``: of the launcher; ``all_come``: each of them connects."""

    def __init__(self, address, secret, ranks, server=None, stay_s=0.0, all_come=False):
        self.address, self.secret, self.server = address, secret, server
        self._ranks, self._stay_s, self._all_come = ranks, stay_s, all_come
        self._held = None
        if server is not None:
            # Registered before the exit function of init(), and so called after it.
            atexit.register(self._stay, os.getpid())

    def hold(self, rank, deadline):
        """Keeps the store until this process ends. Raises BootstrapError, OSError."""
        if self.server is None and self._held is None:
            held = StoreClient(self.address, self.secret, rank, deadline=deadline)
            held.will(_GONE.format(rank), b"")
            held.set(_HERE.format(rank), b"")
            self._held = held

    def _stay(self, pid):
        """At the exit of rank 0's process, whose engine has ended: waits until the other processes have ended, too."""
        if pid != os.getpid():
            return
        failed = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        deadline = Deadline(min(self._stay_s, _FAREWELL_S) if failed else self._stay_s)
        with contextlib.suppress(BootstrapError, OSError):
            client = StoreClient(self.address, self.secret, 0, deadline=deadline)
            for rank in range(1, self._ranks):
                try:
                    client.get(_HERE.format(rank), deadline.left() if self._all_come else 0)
                except BootstrapTimeout:
                    continue
                client.get(_GONE.format(rank), deadline.left())


def at_fixed_address(identity, environ, deadline):
    """The LastingStore of HOROVOD_STORE=rank0://HOST:PORT. Raises BootstrapError if rank 0 cannot serve it there."""
    address = "tcp://" + identity.store.removeprefix(SCHEME)
    found = _known.get((os.getpid(), address))
    if found is None:
        serves = identity.launcher_rank == 0
        server = _serve_at(address, identity.secret, environ) if serves else None
        found = _known[os.getpid(), address] = LastingStore(
            address, identity.secret, identity.whole.size, server, deadline.seconds
        )
    return found


def over_pmi(identity, environ, deadline, tell_end):
    """The LastingStore whose address and secret rank 0 publishes over PMI-1. Every process that the launcher started must
    call it. ``tell_end``: the process manager wants to be told of the end of this process. Raises BootstrapError,
    BootstrapTimeout."""
    found = _known.get((os.getpid(), "pmi"))
    if found is not None:
        return found
    if os.getpid() in _used:
        raise BootstrapError(
            "an earlier init() of this process used PMI-1, which serves a process once, and failed. Start the job again."
        )
    _used.add(os.getpid())
    rank, offer, server = identity.launcher_rank, {}, None
    pmi = Pmi1(environ, deadline)
    try:
        pmi.put(f"hvd-host-{rank}", own_host_name())
        pmi.fence()
        if rank == 0:
            try:
                server, offer = _serve([pmi.get(f"hvd-host-{other}") for other in range(identity.whole.size)])
            except (BootstrapError, OSError) as error:
                offer = {"error": str(error)[:_LONGEST_ERROR]}  # the others wait for the fence
            pmi.put("hvd-store", json.dumps(offer).encode().hex())
        pmi.fence()
        offer = json.loads(bytes.fromhex(pmi.get("hvd-store")))
        if "error" in offer:
            raise BootstrapError(offer["error"])
    except BaseException:
        if server is not None:
            server.close()
        raise
    finally:
        pmi.close()
    if tell_end:
        atexit.register(_finalize, dict(environ), os.getpid())
    address, key = offer["store"], offer["secret"]
    found = _known[os.getpid(), "pmi"] = LastingStore(
        address, bytes.fromhex(key), identity.whole.size, server, deadline.seconds, all_come=True
    )
    return found


def _finalize(environ, pid):
    """At the exit, the last thing: the mpiexec of MPICH ends the other processes if one ends without that. (Slurm does
    not, and would let it wait for them.) If mpi4py has started MPI since, MPI's own end tells it: it comes after this
    function, needs the process manager until then, and Hydra serves no process that has told it of the end."""
    MPI = sys.modules.get("mpi4py.MPI")
    if pid == os.getpid() and not (MPI is not None and MPI.Is_initialized()):
        finalize(environ, _FINALIZE_S)


def _serve(names):
    encryption.refuse_readable_secret(len(set(names)) > 1, "the launcher's process manager")
    secret = new_secret()
    server = StoreServer(address_towards(names), secret)
    return server, {"store": server.address, "secret": secret.hex()}


def pmi_was_used():
    """Whether this process has spoken to the launcher's process manager, so that MPI may not be able to any more."""
    return os.getpid() in _used


def _serve_at(address, secret, environ):
    host, port = split_address(address)
    try:
        return StoreServer(host, secret, port)
    except socket.gaierror as error:
        raise BootstrapError(
            f"HOROVOD_STORE={SCHEME}{host}:{port}: rank 0 cannot look up {host!r} ({error}). It must be a name or an "
            "address of the host of rank 0."
        ) from error
    except OSError as error:
        if error.errno in _NOT_OURS:
            # The name of a service, or an address that is translated on the way: it leads here, but no interface has it.
            return StoreServer(_address_behind(host, environ), secret, port)
        raise BootstrapError(
            f"HOROVOD_STORE={SCHEME}{host}:{port}: rank 0 cannot serve the store there: {error.strerror}. Choose another "
            "port; two jobs on one host need two."
        ) from error


def _address_behind(host, environ):
    """The address to listen on for a name that leads to this host without being one of its addresses."""
    names = [name.strip() for name in environ.get("HOROVOD_GLOO_IFACE", "").split(",") if name.strip()]
    for name in names:
        found = named_address(name)
        if found is not None:
            return found
    _log.warning(
        "HOROVOD_STORE=%s%s: no interface of rank 0's host has that address (%s), so its store listens on all "
        "interfaces. Name the one that leads to the other hosts in HOROVOD_GLOO_IFACE.",
        SCHEME,
        host,
        f"HOROVOD_GLOO_IFACE={','.join(names)} has none either" if names else "it may be that of a service",
    )
    return "0.0.0.0"
