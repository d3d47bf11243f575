"""connect(): from an environment to a World, the links and descriptors the engine is built on.

Called once per init() by the thread that runs it. A World owns every descriptor it names: the engine borrows
them and must have let go before close(). In a forked child all are closed, and only the plain numbers stay
readable.
"""

import logging
import os
import time

from . import affinity
from .identity import identify
from .wire import BootstrapTimeout, Deadline

_log = logging.getLogger(__name__)

DEFAULT_DEADLINE_SECONDS = 30.0
DEFAULT_SILENCE_SECONDS = 30.0


class World:
    """What this process knows about the job.

    rank, size              of this process, of the job
    hosts                   host index of each rank; hosts are numbered by their lowest rank
    host_names, pids        of each rank, as that process sees itself
    local_rank, local_size  among the ranks of this host
    cross_rank, cross_size  index of this host among those that have a process with this local rank
    local_cores             cores that each rank of this host was given, by local rank
    launcher                'horovodrun', 'openmpi', 'mpich', 'torchrun', 'srun', 'pmix' or 'single'
    store                   StoreClient; None for one process
    store_fd                a second authenticated connection to the store, blocking; -1 for one process
    epoch                   number of this init() in the store, equal on all ranks; prefix keys with it
    secret                  the job's secret (bytes); empty for one process
    links                   ShmLink and TcpLink, the parent's first, then the children's by rank
    segment_fd              this host's control segment, -1 where there is none
    segment_bytes           its size, 0 where there is none
    """

    def __init__(self, rank=0, size=1, launcher="single"):
        self.rank, self.size, self.launcher = rank, size, launcher
        self.hosts, self.host_names, self.pids = (0,), (), (os.getpid(),)
        self.local_rank, self.local_size, self.cross_rank, self.cross_size = 0, 1, 0, 1
        self.local_cores = (frozenset(affinity.inherited()),)
        self.store, self.store_fd, self.secret, self.epoch = None, -1, b"", 0
        self.links, self.segment_fd, self.segment_bytes = [], -1, 0
        self._meeting = None
        self._descriptors = None

    @property
    def holds_store(self):
        """Whether the store ends with this process, so that others must have read what is in it before."""
        return self._meeting is not None and self._meeting.server is not None

    def close(self):
        """Closes every descriptor, and the store where this process holds it. Safe to call again."""
        self.links, self.segment_fd, self.store_fd = [], -1, -1
        if self._descriptors is not None:
            self._descriptors.close()
        if self.store is not None:
            self.store.close()
        if self._meeting is not None:
            self._meeting.close()


def connect(environ=None, deadline_s=None):
    """Finds the other processes of the job and connects to this process's neighbours in the tree.

    Args:
        environ: mapping with the launcher's variables; os.environ by default.
        deadline_s: seconds until all processes must have called connect(); by default HOROVOD_START_TIMEOUT,
        or 30.

    Raises ValueError for an environment that makes no sense, BootstrapTimeout that names the ranks which have
    not shown up, BootstrapError for everything else that keeps the job apart. A process alone opens no
    descriptor.
    """
    environ = os.environ if environ is None else environ
    identity = identify(environ)
    transport = environ.get("HOROVOD_CONTROL_TRANSPORT", "auto")
    if transport not in ("auto", "tcp"):
        raise ValueError(f"HOROVOD_CONTROL_TRANSPORT={transport!r} is not one of 'auto', 'tcp'")
    silence_s = _seconds(environ, "HOROVOD_GLOO_TIMEOUT_SECONDS", DEFAULT_SILENCE_SECONDS)
    if deadline_s is None:
        deadline_s = _seconds(environ, "HOROVOD_START_TIMEOUT", DEFAULT_DEADLINE_SECONDS)
    deadline = Deadline(deadline_s)
    if identity.size == 1:
        return _alone(identity)
    from . import rendezvous

    meeting = rendezvous.meet(identity, environ, deadline)
    if meeting.size == 1:
        return _alone(identity)
    world = World(identity.rank, meeting.size, identity.launcher)
    world._meeting = meeting
    try:
        _connect(world, identity, transport, deadline, silence_s)
    except BaseException:
        world.close()
        raise
    return world


def _seconds(environ, name, default):
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise ValueError(f"{name}={text!r} is not a positive number of seconds")
    return seconds


def _alone(identity):
    import socket

    world = World(launcher=identity.launcher)
    world.host_names = (socket.gethostname(),)
    return world


def _connect(world, identity, transport, deadline, silence_s):
    from .descriptors import DescriptorSet
    from .session import Session
    from .store import StoreClient, open_store_connection

    meeting = world._meeting
    world.secret, world.epoch = meeting.secret, meeting.epoch
    world._descriptors = DescriptorSet()
    at = (meeting.address, meeting.secret, world.rank, meeting.epoch, deadline)
    world.store = StoreClient(*at)
    session = Session(world.store, meeting.secret, world.rank, world.size, meeting.epoch, deadline, silence_s)
    try:
        world.store_fd = world._descriptors.own(open_store_connection(*at)).fileno()
        _build(world, session, identity, transport)
        _finish(session, meeting)
    except Exception as error:
        session.fail(error)
        if meeting.server is not None:
            # The store ends with this process: leave the others the time to read why.
            time.sleep(1.0)
        raise


def _build(world, session, identity, transport):
    from . import hosts, topology, wiring

    roster = hosts.gather_roster(session, transport)
    # One rank's wish is enough: both ends of a link must be of one kind.
    transport = "tcp" if any(record["transport"] == "tcp" for record in roster) else "auto"
    neighbours = hosts.find_neighbours(session, roster, world._descriptors)
    shape = topology.describe(world.rank, neighbours.leader)
    world.hosts = shape.hosts
    world.host_names = tuple(record["host"] for record in roster)
    world.pids = tuple(record["pid"] for record in roster)
    world.local_rank, world.local_size = shape.local_rank, shape.local_size
    world.cross_rank, world.cross_size = shape.cross_rank, shape.cross_size
    world.local_cores = tuple(affinity.from_text(roster[other]["cores"]) for other in shape.local_ranks)
    # Only the count is compared: an oversubscribed mpirun hands out local ranks in an order of its own.
    if identity.local_size not in (None, shape.local_size):
        _log.warning(
            "%s started %d processes on this host, of which %d can reach each other here: local_size() is %d",
            identity.launcher,
            identity.local_size,
            shape.local_size,
            shape.local_size,
        )
    world.links, segment = wiring.wire(session, shape, neighbours, transport, world._descriptors)
    if segment is not None:
        world.segment_fd, world.segment_bytes = segment, wiring.segment_bytes(shape.local_size)
    _all_up(session)


def _all_up(session):
    """Returns when every rank has all its links, so that no key of this init() is needed any more."""
    session.put(f"up/{session.rank}", True)
    if session.count("up") == session.size:
        session.put("go", True, keep=True)

    def missing():
        from .session import name_ranks

        absent = session.absent("up")
        who = name_ranks(absent) if absent else "the last rank"
        return f"{who} did not get connected to all neighbours"

    session.wait("go", missing)


def _finish(session, meeting):
    """The last words over the store, so that shutdown() may follow at once."""
    meeting.close_desk()
    if not meeting.dies_with_rank_zero:
        session.forget()
    elif session.rank != 0:
        session.count("left")
    else:
        # Rank 0 takes the store with it when it shuts down: the others must be through with it.
        while session.peek("left") != session.size - 1:
            session.check()
            if session.deadline.passed():
                raise BootstrapTimeout(f"not all ranks finished init() within {session.deadline.seconds:g} s")
            time.sleep(0.0005)
