"""Makes a communicator of the ranks of a list over MPI, for ranks on several hosts without a launcher's store.

MPI's own call would wait forever for ranks that gave another list. So all members first send a message to the first
rank of the list, which then tells all of them to continue. Called on the thread that runs init(); the deadline applies
up to that message.
"""

import json
import time

from hvd_core._base.sockets import BootstrapTimeout, Deadline
from hvd_core._bootstrap.job_members import MembersDisagree, contradict, disagreement, init_text, name_ranks

# The tag of our messages on MPI.COMM_WORLD; programs are unlikely to use it.
_TAG = 18550
_FAREWELL_SECONDS = 1.0
_unfinished = []
_tries = {}


def gathered(MPI, identity, deadline):
    """A communicator of ``identity.members``, in that order.

    Raises MembersDisagree if other ranks gave lists that contradict this one, BootstrapTimeout that names the missing
    ranks.
    """
    members, world = identity.members, MPI.COMM_WORLD
    tries = _tries[members] = _tries.get(members, 0) + 1
    messages = _MemberMessages(MPI, identity, tries)
    try:
        if identity.rank == 0:
            _wait_for_all_members(messages, identity, deadline)
        else:
            _wait_for_first_member(messages, identity, deadline)
    except MembersDisagree:
        messages.clear()
        raise
    finally:
        messages.close()
    world_group = world.Get_group()
    group = world_group.Incl(list(members))
    try:
        return world.Create_group(group, tag=_TAG)
    finally:
        group.Free()
        world_group.Free()


def _wait_for_all_members(messages, identity, deadline):
    others = identity.members[1:]
    messages.send(others, "here")
    missing = set(others)
    while missing:
        source, kind = _receive(messages, identity, deadline, lambda: name_ranks(sorted(missing)))
        if kind == "here":
            missing.discard(source)
    messages.send(others, "go")


def _wait_for_first_member(messages, identity, deadline):
    first = identity.members[0]
    messages.send([first], "here")
    while _receive(messages, identity, deadline, lambda: f"rank {first}, the first,") != (first, "go"):
        pass


def _receive(messages, identity, deadline, missing):
    """(sender, kind) of the next message that belongs to this attempt."""
    members, me = identity.members, identity.launcher_rank
    partners = members[1:] if identity.rank == 0 else members[:1]
    while True:
        message = messages.receive(deadline)
        if message is None:
            raise BootstrapTimeout(
                f"{missing()} has not called {init_text(members)} within {deadline.seconds:g} s "
                "(ranks as the launcher counts them)"
            )
        source, kind, theirs, tries, text = message
        if kind == "no":
            if theirs == members:
                messages.send([rank for rank in partners if rank != source], "no", text)
                raise MembersDisagree(text)
        elif theirs == members:
            if kind == "here" or tries == messages.tries:
                return source, kind
        elif contradict(members, me, theirs, source):
            error = disagreement(members, me, theirs, source)
            messages.send([rank for rank in partners if rank != source], "no", str(error))
            messages.send([source], "no", str(error), theirs)
            raise error


class _MemberMessages:
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
        """Receives the remaining messages of a failed attempt: some MPIs complain about messages that were never
        received."""
        deadline = Deadline(_FAREWELL_SECONDS)
        while self.receive(deadline) is not None:
            pass

    def close(self):
        # Messages to ranks that failed may never be received, and MPI reads their bytes until they are.
        _unfinished[:] = [pair for pair in (*_unfinished, *self._sent) if not pair[0].Test()]
