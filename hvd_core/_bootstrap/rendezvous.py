"""The rendezvous: tells a process where the job's store is, the launcher's or one that the job's rank 0 starts.

Without a launcher's store, rank 0 starts a store and makes the secret. On one host the other ranks get both from its
listener (rendezvous_listener.py); on several hosts, over MPI. Called once per init(), on the thread that runs it.
"""

import contextlib
import json
import time

from hvd_core._base.auth import new_secret
from hvd_core._base.sockets import BootstrapError, BootstrapTimeout, Deadline
from hvd_core._bootstrap import lasting_store, rendezvous_way
from hvd_core._bootstrap import rendezvous_listener as listeners
from hvd_core._bootstrap.job_members import (
    MembersDisagree,
    MemberWatch,
    contradict,
    disagreement,
    from_json,
    init_text,
    number,
)
from hvd_core._bootstrap.peer_liveness import SiblingWatch
from hvd_core._bootstrap.session import Session, never_came
from hvd_core._bootstrap.store import StoreServer

# How often a waiting rank checks whether another member waits in a different job.
_LOOK_SECONDS = 0.5
_FAREWELL_SECONDS = 1.0

# In the launcher's store from the first init(comm=[...]) on.
_LISTS_KEY = "hvd/lists"
# The number of this process's last init(), by members. The worlds of an elastic job begin at multiples of _PER_WORLD: a
# process that came later has called init() less often than the others.
_counts = {}
_PER_WORLD = 1 << 20
# The last init() of each list of members that is over for this process, or in which it is now: all its members hear of
# it if it fails. The newest are at the end; the other ranks are told of that many.
_heard = {}
_TOLD_LISTS = 64


class Rendezvous:
    """The address of the store and its secret. On rank 0 also the store's server, if the job made its own.

    ``lasting``: the LastingStore, which outlives this init(), if the store is one."""

    def __init__(self, identity, address, secret, epoch, server=None, listener=None, lasting=None):
        self.launched = (identity.whole.rank, identity.whole.size)
        self.address, self.secret, self.epoch = address, secret, epoch
        self.lasting = lasting
        self.dies_with_rank_zero = identity.store is None and lasting is None
        self.server = server
        self._identity = identity
        self._listener = listener
        self._published = None

    def hold(self, deadline):
        """Keeps the process of rank 0, with a lasting store, until this process ends. The store can be reached."""
        if self.lasting is not None:
            self.lasting.hold(self._identity.launcher_rank, deadline)

    def open(self, session):
        """Publishes the job that this rank waits for, and lets ``session`` check those of the other members while it
        waits."""
        if self._listener is not None:
            named = listeners.address_of(self._identity)
            deadline = session.deadline
            watch = MemberWatch(
                self._identity, lambda rank: _members_at(named(rank), self._identity, deadline)
            )

            def look():
                if self._listener.failure is not None:
                    raise self._listener.failure
                watch.look()

            session.look = look
        elif not self.dies_with_rank_zero:
            self._published = _PublishedAttempt(
                session.store, self._identity, _counts[self._identity.members]
            )
            session.look = MemberWatch(self._identity, self._published.read, self._published.tell).look
            if self._identity.members is None:
                session.look_key = _LISTS_KEY  # without lists no two jobs contradict each other

    def give_up(self, error, own_connections):
        """Gives the other ranks time to read the failure, if the store or the listener ends with this process.
        ``own_connections``: how many connections to the store are this process's."""
        for members, count in getattr(error, "attempts", ()):
            _counts[members] = max(count, _counts.get(members, 0))
            _hear(members, count)
        if self._listener is not None and isinstance(error, MembersDisagree):
            self._listener.give_up(error)
        elif self.server is not None and self.lasting is None:
            deadline = Deadline(_FAREWELL_SECONDS)
            while self.server.clients() > own_connections and not deadline.passed():
                time.sleep(0.005)

    def close_listener(self):
        """Stops offering the secret, so that the next init() does not find this one's store."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._published is not None:
            self._published.close()
            self._published = None

    def close(self):
        """Stops everything; calling it again does nothing."""
        self.close_listener()
        if self.server is not None and self.lasting is None:
            self.server.close()


def _hear(members, count):
    _heard[members] = max(count, _heard.pop(members, 0))


class _PublishedAttempt:
    """This rank's entry in the launcher's store: the job that it waits for, and the attempts that it has heard of."""

    def __init__(self, store, identity, count):
        self._store, self._rank = store, identity.launcher_rank
        self._attempt = (identity.members, count)
        self._key = f"hvd/in-init/{self._rank}"
        _hear(*self._attempt)
        store.set(self._key, json.dumps([self._attempt, list(_heard.items())[-_TOLD_LISTS:]]).encode())
        if identity.members is not None:
            store.set(_LISTS_KEY, b"")

    def read(self, rank):
        """(members, count) of the job that ``rank`` waits for. None if it does not wait, or if one of the two attempts
        is over for the other rank: it has failed, which the rank that is still in it is about to hear, or is complete."""
        try:
            (members, count), heard = json.loads(self._store.get(f"hvd/in-init/{rank}", 0))
        except BootstrapTimeout:
            return None
        mine, my_count = self._attempt
        theirs = from_json(members)
        if theirs != mine:
            known = max((number for found, number in heard if from_json(found) == mine), default=0)
            if known >= my_count or _heard.get(theirs, 0) >= count:
                return None
        return theirs, count

    def tell(self, theirs, error):
        """Makes the init() of the other rank's job fail too."""
        error.attempts = (self._attempt, theirs)
        members = theirs[0]
        rank = self._rank if members is None else members.index(self._rank)
        Session(self._store, b"", rank, 0, number(*theirs), Deadline(1)).fail(error)

    def close(self):
        with contextlib.suppress(BootstrapError):
            self._store.delete(self._key)


def find_store(identity, environ, deadline):
    """(the identity, with its size; the Rendezvous of its job). Raises BootstrapError that tells what is missing."""
    told = identity.whole.epoch * _PER_WORLD
    count = _counts[identity.members] = max(told, _counts.get(identity.members, 0)) + 1
    way = rendezvous_way.choose(identity, environ)
    if way.name == "store":
        # The launcher's store outlives an init(); all members of a job count its inits alike.
        epoch = number(identity.members, count)
        return identity, Rendezvous(identity, identity.store, identity.secret, epoch)
    if way.name in ("rank 0", "pmi"):
        kept = _lasting(way, identity, environ, deadline)
        return identity, Rendezvous(
            identity, kept.address, kept.secret, number(identity.members, count), kept.server, lasting=kept
        )
    if way.name == "unix":
        return identity, _rendezvous_on_host(identity, deadline)
    if way.name == "mpi4py":
        from hvd_core._bootstrap import mpi_rendezvous

        identity, address, secret, server = mpi_rendezvous.find_store(identity, deadline)
        return identity, Rendezvous(identity, address, secret, 1, server=server)
    raise BootstrapError(f"{way.why}. fix: {way.better}.")


def attend(identity, environ, deadline):
    """Does what other parts of the launcher's ranks need from a process that is a job by itself: all processes exchange
    the store's address over PMI-1, and the launcher's rank 0 serves the store. Raises BootstrapError."""
    way = rendezvous_way.choose(identity, environ)
    if way.name in ("rank 0", "pmi"):
        kept = _lasting(way, identity, environ, deadline)
        if way.name == "pmi":
            kept.hold(identity.launcher_rank, deadline)


def _lasting(way, identity, environ, deadline):
    if way.name == "pmi":
        return lasting_store.over_pmi(identity, environ, deadline, not rendezvous_way.in_step(environ))
    return lasting_store.at_fixed_address(identity, environ, deadline)


def _rendezvous_on_host(identity, deadline):
    named = listeners.address_of(identity)
    if identity.rank != 0:
        return _join_first_member(identity, named, deadline)
    secret = new_secret()
    server = StoreServer("127.0.0.1", secret)
    try:
        listener = listeners.RendezvousListener(
            named(identity.launcher_rank), identity, (server.address, secret)
        )
    except BaseException:
        server.close()
        raise
    return Rendezvous(identity, server.address, secret, 1, server=server, listener=listener)


def _join_first_member(identity, named, deadline):
    listener = listeners.RendezvousListener(named(identity.launcher_rank), identity)
    try:
        address, secret = _ask_first_member(identity, named, listener, deadline)
    except BaseException as error:
        if isinstance(error, MembersDisagree):
            listener.give_up(error)
        listener.close()
        raise
    return Rendezvous(identity, address, secret, 1, listener=listener)


def _ask_first_member(identity, named, listener, deadline):
    first = 0 if identity.members is None else identity.members[0]
    watch = MemberWatch(identity, lambda rank: _members_at(named(rank), identity, deadline))
    siblings = SiblingWatch(identity)
    pause, look_at = 0.005, time.monotonic() + _LOOK_SECONDS
    while True:
        answer = listeners.ask(named(first), identity, deadline)
        if listener.failure is not None:
            raise listener.failure
        if answer is not None and "error" in answer:
            raise BootstrapError(f"rank {first} refused this process: {answer['error']}")
        if answer is not None and "store" in answer:
            return answer["store"], bytes.fromhex(answer["secret"])
        if answer is not None and contradict(
            identity.members, identity.launcher_rank, answer["members"], first
        ):
            raise disagreement(identity.members, identity.launcher_rank, answer["members"], first)
        if time.monotonic() >= look_at:
            watch.look()
            if first in siblings.missing():
                raise never_came(first, "has no process on this host any more: it ended")
            look_at = time.monotonic() + _LOOK_SECONDS
        if deadline.left() <= pause:
            raise BootstrapTimeout(_first_member_missing(identity, first, answer, deadline))
        time.sleep(pause)
        pause = min(0.05, pause * 2)


def _first_member_missing(identity, first, answer, deadline):
    what = f"rank {first} has not shown up on this host within {deadline.seconds:g} s"
    if identity.members is not None:
        what += f" for {init_text(identity.members)}"
    if answer is not None:
        return (
            f"{what}: it is in {init_text(answer['members'])}, with other ranks. Give all members of a list the "
            "same list."
        )
    return (
        f"{what}. Has it failed, does it never call init(), or do the ranks run in separate containers? In the "
        "last case start with horovodrun; or set HOROVOD_STORE=rank0://HOST:PORT, with a free port on the host of rank "
        "0, and the same HOROVOD_SECRET_KEY for all processes."
    )


def _members_at(name, identity, deadline):
    answer = listeners.ask(name, identity, deadline)
    return None if answer is None or "error" in answer else (answer["members"], None)
