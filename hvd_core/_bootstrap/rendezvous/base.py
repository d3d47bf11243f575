"""What a rendezvous method returns: the store's address and secret, and what happens around them during one init()."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hvd_core._base.sockets import Deadline

if TYPE_CHECKING:
    from hvd_core._bootstrap.launchers.identity import Identity
    from hvd_core._bootstrap.store import StoreServer
    from hvd_core._bootstrap.store.session import Session

FAREWELL_SECONDS = 1.0
"""After a failure, the time in which the other ranks can read it, where the store or a listener ends with this
process."""


class Rendezvous:
    """The address of the store and its secret. On rank 0 also the store's server, if the job made its own.

    Args:
        identity: of this process.
        address: 'tcp://host:port' of the store; None for a job of one process.
        secret: the job's.
        epoch: the number of this init() in the store.
        server: of the store, if this process serves it.
    """

    is_persistent = False
    """Whether a process of this job serves a store that outlives this init()."""
    dies_with_rank_zero = True
    """Whether the store ends with the job's rank 0."""

    def __init__(
        self,
        identity: Identity,
        address: str | None,
        secret: bytes,
        epoch: int,
        server: StoreServer | None = None,
    ) -> None:
        self.launched = (identity.whole.rank, identity.whole.size)
        self.address, self.secret, self.epoch = address, secret, epoch
        self.server = server
        self.identity = identity

    @property
    def store_ends_here(self) -> bool:
        """Whether the store ends with this init() or job, because this process serves it."""
        return self.server is not None and not self.is_persistent

    def hold(self, deadline: Deadline) -> None:
        """Keeps the process with a persistent store until this process ends. The store can be reached."""

    def open(self, session: Session) -> None:
        """Publishes the job that this rank waits for, and lets ``session`` check those of the other members while it
        waits."""

    def give_up(self, error: BaseException, own_connections: int) -> None:
        """Gives the other ranks time to read the failure, if the store ends with this process. ``own_connections``: how
        many connections to the store are this process's."""
        if self.server is not None and not self.is_persistent:
            deadline = Deadline(FAREWELL_SECONDS)
            while self.server.clients() > own_connections and not deadline.passed():
                time.sleep(0.005)

    def close_listener(self) -> None:
        """Stops offering the secret, so that the next init() does not find this one's store."""

    def close(self) -> None:
        """Stops everything; calling it again does nothing."""
        self.close_listener()
        if self.server is not None and not self.is_persistent:
            self.server.close()


class RendezvousMethod:
    """One way to find the store."""

    def find_store(
        self, identity: Identity, environ: Mapping[str, str], deadline: Deadline
    ) -> tuple[Identity, Rendezvous]:
        """The identity, with its size, and the Rendezvous of its job. Raises BootstrapError, BootstrapTimeout."""
        raise NotImplementedError

    def attend(self, identity: Identity, environ: Mapping[str, str], deadline: Deadline) -> None:
        """Does what other ranks of the launcher need from a process that is a job by itself. Raises BootstrapError."""
