"""Brings the ranks of a list together over MPI, where the launcher gives no store and the ranks span hosts.

MPI's own call for that would wait for ever for ranks that gave another list. So the first of the list hears from all, and
tells all to go on. Called on the thread that runs init(); deadlines apply up to that word.
"""

import json
import time

from .membership import MembersDisagree, contradict, disagreement, init_text
from .session import name_ranks
from .wire import BootstrapTimeout, Deadline

# Of messages on MPI.COMM_WORLD; no program is likely to use it.
_TAG = 18550
_LAST_WORDS_SECONDS = 1.0
_unfinished = []
_tries = {}


def gathered(MPI, identity, deadline):
    """A communicator of ``identity.members``, in that order.

    Raises MembersDisagree when others gave lists that contradict, BootstrapTimeout that names who has not come.
    """
    members, world = identity.members, MPI.COMM_WORLD
    tries = _tries[members] = _tries.get(members, 0) + 1
    mail = _Mail(MPI, identity, tries)
    try:
        if identity.rank == 0:
            _lead(mail, identity, deadline)
        else:
            _follow(mail, identity, deadline)
    except MembersDisagree:
        mail.clear()
        raise
    finally:
        mail.close()
    everybody = world.Get_group()
    group = everybody.Incl(list(members))
    try:
        return world.Create_group(group, tag=_TAG)
    finally:
        group.Free()
        everybody.Free()


def _lead(mail, identity, deadline):
    others = identity.members[1:]
    mail.send(others, "here")
    missing = set(others)
    while missing:
        source, kind = _receive(mail, identity, deadline, lambda: name_ranks(sorted(missing)))
        if kind == "here":
            missing.discard(source)
    mail.send(others, "go")


def _follow(mail, identity, deadline):
    first = identity.members[0]
    mail.send([first], "here")
    while _receive(mail, identity, deadline, lambda: f"rank {first}, the first,") != (first, "go"):
        pass


def _receive(mail, identity, deadline, missing):
    """(sender, kind) of the next message that belongs to this attempt."""
    members, me = identity.members, identity.launcher_rank
    partners = members[1:] if identity.rank == 0 else members[:1]
    while True:
        message = mail.receive(deadline)
        if message is None:
            raise BootstrapTimeout(
                f"{missing()} has not called {init_text(members)} within {deadline.seconds:g} s "
                "(ranks as the launcher counts them)"
            )
        source, kind, theirs, tries, text = message
        if kind == "no":
            if theirs == members:
                mail.send([rank for rank in partners if rank != source], "no", text)
                raise MembersDisagree(text)
        elif theirs == members:
            if kind == "here" or tries == mail.tries:
                return source, kind
        elif contradict(members, me, theirs, source):
            error = disagreement(members, me, theirs, source)
            mail.send([rank for rank in partners if rank != source], "no", str(error))
            mail.send([source], "no", str(error), theirs)
            raise error


class _Mail:
    def __init__(self, MPI, identity, tries):
        self._MPI, self._world = MPI, MPI.COMM_WORLD
        self._members, self.tries = identity.members, tries
        self._sent = []

    def send(self, ranks, kind, text="", members=None):
        data = json.dumps([kind, members or self._members, self.tries, text]).encode()
        for rank in ranks:
            self._sent.append((self._world.Isend([data, self._MPI.BYTE], dest=rank, tag=_TAG), data))

    def receive(self, deadline):
        """(sender, kind, members, tries, text), or None when the deadline has passed."""
        MPI, status = self._MPI, self._MPI.Status()
        while not self._world.Iprobe(source=MPI.ANY_SOURCE, tag=_TAG, status=status):
            if deadline.passed():
                return None
            time.sleep(0.001)
        data = bytearray(status.Get_count(MPI.BYTE))
        self._world.Recv([data, MPI.BYTE], source=status.Get_source(), tag=_TAG)
        kind, members, tries, text = json.loads(data)
        return status.Get_source(), kind, tuple(members), tries, text

    def clear(self):
        """Takes what still arrives for an attempt that is over: an MPI may mind messages that nobody has received."""
        deadline = Deadline(_LAST_WORDS_SECONDS)
        while self.receive(deadline) is not None:
            pass

    def close(self):
        # Nobody may ever receive what went to ranks that failed; MPI reads these bytes until somebody does.
        _unfinished[:] = [pair for pair in (*_unfinished, *self._sent) if not pair[0].Test()]
