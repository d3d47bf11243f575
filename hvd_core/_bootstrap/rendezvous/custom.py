"""Custom rendezvous: a job whose ranks another program has numbered, and which distributes a few bytes from rank 0 to the
others by its own means: `init(comm=CustomRendezvous(...))`.

Rank 0 starts the job's store and publishes its address and the secret. A process that reads these bytes can join the job,
so they must be readable by the job's own processes only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from hvd_core._base.auth import new_secret
from hvd_core._base.sockets import BootstrapError, Deadline
from hvd_core._bootstrap.launchers.identity import Identity, identify
from hvd_core._bootstrap.rendezvous.base import Rendezvous
from hvd_core._bootstrap.store import StoreServer, encryption


@dataclass(frozen=True)
class CustomRendezvous:
    """How this process finds the other ranks.

    Args:
        rank, size: of this process, of the job.
        publish: called on rank 0, once, with the bytes that the other ranks need.
        read: called on the other ranks; waits for these bytes and returns them.
        address: of rank 0's host, at which the others reach it.
    """

    rank: int
    size: int
    publish: Callable[[bytes], None]
    read: Callable[[], bytes]
    address: str = "127.0.0.1"


def find_store(
    custom: CustomRendezvous, environ: Mapping[str, str], deadline: Deadline
) -> tuple[Identity, Rendezvous | None]:
    """(Identity, Rendezvous) of the job. Rendezvous is None for a job of one process.

    Raises:
        BootstrapError: rank 0 cannot start the store, or must not send its secret in the clear. The other ranks raise it
            too.
    """
    identity = _identity(custom, environ)
    if custom.size == 1:
        return identity, None
    if custom.rank != 0:
        message = json.loads(custom.read())
        if "error" in message:
            raise BootstrapError(f"rank 0 could not start the job's store: {message['error']}")
        if "refused" in message:
            raise BootstrapError(message["refused"])
        return identity, Rendezvous(identity, message["store"], bytes.fromhex(message["secret"]), 1)
    try:
        encryption.refuse_readable_secret(
            encryption.reached_by_others(custom.address), "the program's own store"
        )
    except BootstrapError as error:
        custom.publish(json.dumps({"refused": str(error)}).encode())
        raise
    secret = new_secret()
    try:
        server = StoreServer(custom.address, secret)
    except OSError as error:
        custom.publish(json.dumps({"error": str(error)}).encode())
        raise BootstrapError(f"the job's store could not be started at {custom.address}: {error}") from error
    try:
        custom.publish(json.dumps({"store": server.address, "secret": secret.hex()}).encode())
    except BaseException:
        server.close()
        raise
    return identity, Rendezvous(identity, server.address, secret, 1, server)


def _identity(custom: CustomRendezvous, environ: Mapping[str, str]) -> Identity:
    """The launcher's Identity, if it numbers the processes alike: then the end of a process can be seen."""
    try:
        launched = identify({key: value for key, value in environ.items() if key != "HOROVOD_STORE"})
    except ValueError:
        launched = Identity(0, 1)  # the variables belong to another program
    if (launched.rank, launched.size) == (custom.rank, custom.size) and launched.launcher == "torchrun":
        return replace(launched, store=None, secret=None)
    return Identity(custom.rank, custom.size, launcher="custom")
