"""The launcher's store, which is there before the ranks are and serves every init() of every part of them.

All members of a job count its inits alike. While a rank is in init(), the store says which ranks it waits for: two ranks
that wait for each other in different jobs can never be connected, so both jobs end with the same error.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hvd_core._base.sockets import BootstrapError, BootstrapTimeout, Deadline
from hvd_core._bootstrap.launchers.identity import Identity
from hvd_core._bootstrap.rendezvous.base import Rendezvous, RendezvousMethod
from hvd_core._bootstrap.store import StoreClient, StoreServer
from hvd_core._bootstrap.store.job_members import (
    Members,
    MembersDisagree,
    MemberWatch,
    epoch_of,
    members_from_json,
)
from hvd_core._bootstrap.store.session import Session

if TYPE_CHECKING:
    from hvd_core._bootstrap.rendezvous.rank0_store import Rank0Store

# In the store from the first init(comm=[...]) on.
_LISTS_KEY = "hvd/lists"
# The number of this process's last init(), by members. The worlds of an elastic job begin at multiples of _PER_WORLD: a
# process that came later has called init() less often than the others.
_counts: dict[Members, int] = {}
_PER_WORLD = 1 << 20


def next_count(identity: Identity) -> int:
    """The number of the init() that begins now, among those with the same members. Called once per init(), before
    anything that may fail on one rank only."""
    first = identity.whole.epoch * _PER_WORLD
    count = _counts[identity.members] = max(first, _counts.get(identity.members, 0)) + 1
    return count


class PersistentRendezvous(Rendezvous):
    """A store that outlives this init(): the launcher's, or that of the launcher's rank 0 (``rank0_store``). ``count``:
    see next_count()."""

    dies_with_rank_zero = False

    def __init__(
        self,
        identity: Identity,
        address: str,
        secret: bytes,
        count: int,
        rank0_store: Rank0Store | None = None,
    ) -> None:
        self._count = count
        epoch = epoch_of(identity.members, count)
        server: StoreServer | None = None if rank0_store is None else rank0_store.server
        super().__init__(identity, address, secret, epoch, server)
        self._rank0_store = rank0_store
        self.is_persistent = rank0_store is not None
        self._store: StoreClient | None = None  # while this rank's list is published
        self._key = f"hvd/in-init/{identity.launcher_rank}"

    def hold(self, deadline: Deadline) -> None:
        if self._rank0_store is not None:
            self._rank0_store.hold(self.identity.launcher_rank, deadline)

    def open(self, session: Session) -> None:
        self._store = session.store
        session.store.set(self._key, json.dumps([self.identity.members, self._count]).encode())
        session.look = MemberWatch(self.identity, self._read, self._report).look
        if self.identity.members is None:
            session.look_key = _LISTS_KEY  # without lists no two jobs contradict each other
        else:
            session.store.set(_LISTS_KEY, b"")

    def _read(self, rank: int) -> tuple[Members, int] | None:
        """(members, count) of the job that ``rank`` waits for; None if it does not wait."""
        assert self._store is not None
        try:
            members, count = json.loads(self._store.get(f"hvd/in-init/{rank}", 0))
        except BootstrapTimeout:
            return None
        return members_from_json(members), count

    def _report(self, theirs: tuple[Members, int], error: MembersDisagree) -> None:
        """Makes the init() of the other rank's job fail too."""
        assert self._store is not None
        members, count = theirs
        error.attempts = ((self.identity.members, self._count), theirs)
        me = self.identity.launcher_rank
        rank = me if members is None else members.index(me)
        Session(self._store, b"", rank, 0, epoch_of(members, count), Deadline(1)).fail(error)

    def give_up(self, error: BaseException, own_connections: int) -> None:
        if isinstance(error, MembersDisagree):
            # This process has not called the other init(), which counts as one nevertheless.
            for members, count in error.attempts:
                _counts[members] = max(count, _counts.get(members, 0))
        super().give_up(error, own_connections)

    def close_listener(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with contextlib.suppress(BootstrapError):
                store.delete(self._key)


class LauncherStore(RendezvousMethod):
    """The method 'store'."""

    def find_store(
        self, identity: Identity, environ: Mapping[str, str], deadline: Deadline
    ) -> tuple[Identity, Rendezvous]:
        assert identity.store is not None and identity.secret is not None
        return identity, PersistentRendezvous(identity, identity.store, identity.secret, next_count(identity))
