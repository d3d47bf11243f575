"""Brings a process to the job's store: the launcher's, or one that the job's rank 0 starts.

Without a launcher's store rank 0 makes the secret. On one host it hands both over at its desk (desk.py); over several
hosts they travel over MPI. Called once per init() on the thread that runs it.
"""

import contextlib
import json
import time

from . import desk as desks
from .auth import new_secret
from .membership import Lookout, MembersDisagree, contradict, disagreement, init_text, number
from .session import Session
from .store_server import StoreServer
from .wire import BootstrapError, BootstrapTimeout, Deadline

# How often a rank that waits looks whether others wait for something else.
_LOOK_SECONDS = 0.5
_LAST_WORDS_SECONDS = 1.0

_counts = {}


class Meeting:
    """Where the store is and the secret that opens it; rank 0 also holds what serves the others."""

    def __init__(self, identity, address, secret, epoch, server=None, desk=None):
        self.launched = (identity.whole.rank, identity.whole.size)
        self.address, self.secret, self.epoch = address, secret, epoch
        self.dies_with_rank_zero = identity.store is None
        self.server = server
        self._identity = identity
        self._desk = desk
        self._notice = None

    def open(self, session):
        """Lets the others see which job this rank waits for, and this rank see theirs while ``session`` waits."""
        if self._desk is not None:
            named = desks.names(self._identity)
            deadline = session.deadline
            lookout = Lookout(self._identity, lambda rank: _at_desk(named(rank), self._identity, deadline))

            def look():
                if self._desk.trouble is not None:
                    raise self._desk.trouble
                lookout.look()

            session.look = look
        elif not self.dies_with_rank_zero:
            self._notice = _Notice(session.store, self._identity, _counts[self._identity.members])
            session.look = Lookout(self._identity, self._notice.read, self._notice.tell).look

    def give_up(self, error):
        """Leaves the others the time to read why, where what they read ends with this process."""
        for members, count in getattr(error, "attempts", ()):
            _counts[members] = max(count, _counts.get(members, 0))
        if self._desk is not None and isinstance(error, MembersDisagree):
            self._desk.give_up(error)
        elif self.server is not None:
            time.sleep(_LAST_WORDS_SECONDS)

    def close_desk(self):
        """Stops handing the secret out. The next init() must not meet this one's store."""
        if self._desk is not None:
            self._desk.close()
            self._desk = None
        if self._notice is not None:
            self._notice.close()
            self._notice = None

    def close(self):
        """Stops everything; calling it again does nothing."""
        self.close_desk()
        if self.server is not None:
            self.server.close()


class _Notice:
    """What this rank is waiting for, for all to read in the launcher's store."""

    def __init__(self, store, identity, count):
        self._store, self._rank = store, identity.launcher_rank
        self._attempt = (identity.members, count)
        self._key = f"hvd/in-init/{self._rank}"
        store.set(self._key, json.dumps(self._attempt).encode())

    def read(self, rank):
        try:
            members, count = json.loads(self._store.get(f"hvd/in-init/{rank}", 0))
        except BootstrapTimeout:
            return None
        return (None if members is None else tuple(members)), count

    def tell(self, theirs, error):
        """Ends the init() of the other rank's job as well."""
        error.attempts = (self._attempt, theirs)
        members = theirs[0]
        rank = self._rank if members is None else members.index(self._rank)
        Session(self._store, b"", rank, 0, number(*theirs), Deadline(1)).fail(error)

    def close(self):
        with contextlib.suppress(BootstrapError):
            self._store.delete(self._key)


def meet(identity, environ, deadline):
    """(the identity, with its size; the Meeting of its job). Raises BootstrapError that says what is missing."""
    count = _counts[identity.members] = _counts.get(identity.members, 0) + 1
    if identity.store is not None:
        # The launcher's store outlives an init(); all members of a job count its inits alike.
        epoch = number(identity.members, count)
        return identity, Meeting(identity, identity.store, identity.secret, epoch)
    how = environ.get("HOROVOD_RENDEZVOUS", "auto")
    if how not in ("auto", "unix", "mpi4py"):
        raise ValueError(f"HOROVOD_RENDEZVOUS={how!r} is not one of 'auto', 'unix', 'mpi4py'")
    whole = identity.whole
    one_host = whole.size is not None and whole.local_size == whole.size
    if how == "unix" or (how == "auto" and one_host):
        return identity, _meet_on_this_host(identity, deadline)
    from . import mpi_rendezvous

    if how == "mpi4py" or mpi_rendezvous.available():
        identity, address, secret, server = mpi_rendezvous.meet(identity, deadline)
        return identity, Meeting(identity, address, secret, 1, server=server)
    if whole.size is not None and whole.local_size is None:
        # The launcher does not say how the ranks are spread: they may well all be here.
        return identity, _meet_on_this_host(identity, deadline)
    raise BootstrapError(_what_is_missing(whole))


def _what_is_missing(identity):
    if identity.size is None:
        what = (
            f"{identity.variable} is set, but nothing in the environment says how many processes the job has"
        )
    else:
        what = (
            f"the job has {identity.size} processes and {identity.launcher} started {identity.local_size} of "
            "them on this host, so they need a way to find each other"
        )
    return (
        f"{what}. Install mpi4py for the MPI you launch with (pip install mpi4py), or start with horovodrun, "
        "which brings what they need (horovodrun --mpi starts them by mpirun)."
    )


def _meet_on_this_host(identity, deadline):
    named = desks.names(identity)
    if identity.rank != 0:
        return _come_to_the_first(identity, named, deadline)
    secret = new_secret()
    server = StoreServer("127.0.0.1", secret)
    try:
        desk = desks.Desk(named(identity.launcher_rank), identity, (server.address, secret))
    except BaseException:
        server.close()
        raise
    return Meeting(identity, server.address, secret, 1, server=server, desk=desk)


def _come_to_the_first(identity, named, deadline):
    desk = desks.Desk(named(identity.launcher_rank), identity)
    try:
        address, secret = _ask_the_first(identity, named, desk, deadline)
    except BaseException as error:
        if isinstance(error, MembersDisagree):
            desk.give_up(error)
        desk.close()
        raise
    return Meeting(identity, address, secret, 1, desk=desk)


def _ask_the_first(identity, named, desk, deadline):
    first = 0 if identity.members is None else identity.members[0]
    lookout = Lookout(identity, lambda rank: _at_desk(named(rank), identity, deadline))
    pause, look_at = 0.005, time.monotonic() + _LOOK_SECONDS
    while True:
        answer = desks.ask(named(first), identity, deadline)
        if desk.trouble is not None:
            raise desk.trouble
        if answer is not None and "error" in answer:
            raise BootstrapError(f"rank {first} turned this process away: {answer['error']}")
        if answer is not None and "store" in answer:
            return answer["store"], bytes.fromhex(answer["secret"])
        if answer is not None and contradict(
            identity.members, identity.launcher_rank, answer["members"], first
        ):
            raise disagreement(identity.members, identity.launcher_rank, answer["members"], first)
        if time.monotonic() >= look_at:
            lookout.look()
            look_at = time.monotonic() + _LOOK_SECONDS
        if deadline.left() <= pause:
            raise BootstrapTimeout(_first_is_missing(identity, first, answer, deadline))
        time.sleep(pause)
        pause = min(0.05, pause * 2)


def _first_is_missing(identity, first, answer, deadline):
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
        "last case start with horovodrun, or install mpi4py and set HOROVOD_RENDEZVOUS=mpi4py."
    )


def _at_desk(name, identity, deadline):
    answer = desks.ask(name, identity, deadline)
    return None if answer is None or "error" in answer else (answer["members"], None)
