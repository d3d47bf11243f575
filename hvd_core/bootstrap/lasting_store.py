"""A store that the launcher's rank 0 serves for as long as its process lives, for launchers without a store.

Like a launcher's store it serves every init() of every part of the ranks. The ranks learn its address from a variable
(HOROVOD_STORE=rank0://HOST:PORT, with a secret that all of them were given) or over the launcher's PMI-1, which is used
once per process. Used on the thread that runs init().
"""

import errno
import json
import logging
import os
import socket

from . import encryption
from .auth import new_secret
from .pmi1 import Pmi1, own_host_name
from .routes import address_towards
from .socket_io import BootstrapError, split_address
from .store_server import StoreServer

_log = logging.getLogger("horovod")
SCHEME = "rank0://"
_NOT_OURS = (errno.EADDRNOTAVAIL,)
# A value has at most 1024 characters; the text is doubled on its way.
_LONGEST_ERROR = 400
# The stores by process: a forked child has neither the server nor the right to speak to the process manager.
_known = {}
# The processes that have spoken to the process manager, also those whose rendezvous then failed.
_used = set()


class LastingStore:
    """``address`` ('tcp://host:port') and ``secret`` of the store; ``server`` in its process, else None."""

    def __init__(self, address, secret, server=None):
        self.address, self.secret, self.server = address, secret, server


def at_fixed_address(identity):
    """The LastingStore of HOROVOD_STORE=rank0://HOST:PORT. Raises BootstrapError if rank 0 cannot serve it there."""
    address = "tcp://" + identity.store.removeprefix(SCHEME)
    found = _known.get((os.getpid(), address))
    if found is None:
        server = _serve_at(address, identity.secret) if identity.launcher_rank == 0 else None
        found = _known[os.getpid(), address] = LastingStore(address, identity.secret, server)
    return found


def over_pmi(identity, environ, deadline):
    """The LastingStore whose address and secret rank 0 publishes over PMI-1. Every process that the launcher started must
    call it. Raises BootstrapError, BootstrapTimeout."""
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
    address, key = offer["store"], offer["secret"]
    found = _known[os.getpid(), "pmi"] = LastingStore(address, bytes.fromhex(key), server)
    return found


def _serve(names):
    encryption.refuse_readable_secret(names, "the launcher's process manager")
    secret = new_secret()
    server = StoreServer(address_towards(names), secret)
    return server, {"store": server.address, "secret": secret.hex()}


def pmi_was_used():
    """Whether this process has spoken to the launcher's process manager, so that MPI may not be able to any more."""
    return os.getpid() in _used


def _serve_at(address, secret):
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
            _log.info("rank 0 has no interface with the address of %s: its store listens on all", host)
            return StoreServer("0.0.0.0", secret, port)
        raise BootstrapError(
            f"HOROVOD_STORE={SCHEME}{host}:{port}: rank 0 cannot serve the store there: {error.strerror}. Choose another "
            "port; two jobs on one host need two."
        ) from error
