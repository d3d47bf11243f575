"""A job whose ranks another program has numbered, and which have a way of their own to hand a few bytes from rank 0 to
the others: `init(comm=Meeting(...))`.

Rank 0 starts the job's store and hands over its address and the secret. A process that reads these bytes can join the
job, so the way must be one that only the job's own processes can read.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

from hvd_core._base.auth import new_secret
from hvd_core._base.sockets import BootstrapError
from hvd_core._bootstrap import encryption
from hvd_core._bootstrap.identity import Identity, identify
from hvd_core._bootstrap.rendezvous import Rendezvous
from hvd_core._bootstrap.store import StoreServer


@dataclass(frozen=True)
class Meeting:
    """``rank``, ``size``: of this process and of the job. ``publish(bytes)``: called on rank 0, once. ``read()``: called
    on the other ranks, waits for these bytes. ``address``: of rank 0's host, at which the others reach it."""

    rank: int
    size: int
    publish: Callable[[bytes], None]
    read: Callable[[], bytes]
    address: str = "127.0.0.1"


def find_store(meeting, environ, deadline):
    """(Identity, Rendezvous) of the job. Rendezvous is None for a job of one process.

    Raises BootstrapError if rank 0 cannot start the store, or must not send its secret in the clear; then the other ranks
    raise it too.
    """
    identity = _identity(meeting, environ)
    if meeting.size == 1:
        return identity, None
    if meeting.rank != 0:
        message = json.loads(meeting.read())
        if "error" in message:
            raise BootstrapError(f"rank 0 could not start the job's store: {message['error']}")
        if "refused" in message:
            raise BootstrapError(message["refused"])
        return identity, Rendezvous(identity, message["store"], bytes.fromhex(message["secret"]), 1)
    try:
        encryption.refuse_readable_secret(
            encryption.reached_by_others(meeting.address),
            "the program's own store",
        )
    except BootstrapError as error:
        meeting.publish(json.dumps({"refused": str(error)}).encode())
        raise
    secret = new_secret()
    try:
        server = StoreServer(meeting.address, secret)
    except OSError as error:
        meeting.publish(json.dumps({"error": str(error)}).encode())
        raise BootstrapError(f"the job's store could not be started at {meeting.address}: {error}") from error
    try:
        meeting.publish(json.dumps({"store": server.address, "secret": secret.hex()}).encode())
    except BaseException:
        server.close()
        raise
    return identity, Rendezvous(identity, server.address, secret, 1, server=server)


def _identity(meeting, environ):
    """The launcher's Identity, if it numbers the processes alike: it knows how to see the end of a process."""
    try:
        launched = identify({k: v for k, v in environ.items() if k not in ("HOROVOD_STORE",)})
    except ValueError:
        launched = Identity(0, 1)  # the variables belong to another program
    if (launched.rank, launched.size) == (meeting.rank, meeting.size) and launched.launcher == "torchrun":
        return replace(launched, store=None, secret=None)
    return Identity(meeting.rank, meeting.size, launcher="meeting")
