"""connect(): turns a launcher's environment into a World, which holds the links and descriptors for the engine.

Called once per init(), on the thread that runs it. A World owns all its descriptors: the engine borrows them, and must
have ended before close(). In a forked child all are closed, and only the plain numbers remain readable.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hvd_core._base import logs
from hvd_core._base.sockets import (
    BootstrapError,
    BootstrapTimeout,
    Deadline,
    DescriptorSet,
    RankLost,
    StoreLost,
)
from hvd_core._bootstrap import affinity, launchers
from hvd_core._bootstrap.launchers.identity import Identity, identify
from hvd_core._bootstrap.store.job_members import is_communicator, name_ranks, select
from hvd_core._config.settings import encryption_wanted, seconds_of

if TYPE_CHECKING:
    # A job of one process needs none of these.
    from hvd_core._bootstrap.hosts import Neighbours
    from hvd_core._bootstrap.launchers.process import LauncherProcess
    from hvd_core._bootstrap.links import Link
    from hvd_core._bootstrap.rendezvous.base import Rendezvous
    from hvd_core._bootstrap.rendezvous.mpi import JobComm
    from hvd_core._bootstrap.store import StoreClient
    from hvd_core._bootstrap.store.session import Session

_log = logging.getLogger("horovod")

LONGEST_LINGER_SECONDS = 10.0
_REPORT_SECONDS = 0.5  # for the reason of another rank that has gone


class World:
    """The job as this process sees it.

    rank, size              of this process, of the job
    hosts                   host index of each rank; hosts are numbered by their lowest rank
    host_names, pids        of each rank, as that process sees itself
    local_rank, local_size  among the ranks of this host
    cross_rank, cross_size  index of this host among those that have a process with this local rank
    local_cores             cores that each rank of this host was given, by local rank
    launcher                Launcher.name ('horovodrun', 'openmpi', ...), 'mpi' (unknown), 'custom' or 'single'
    launcher_used_up        True if the rendezvous has used the launcher's process manager, which serves a process once:
                            a library that asks it (MPI) would end the job
    store                   StoreClient; None for one process
    store_fd, store_key     a second authenticated connection to the store, blocking, -1 for one process; its key if it is
                            encrypted, else empty
    clock_offset_ns         what has to be added to this host's CLOCK_MONOTONIC for the clock of rank 0's host
    epoch                   number of this init() in the store, equal on all ranks; prefix keys with it
    secret                  the job's secret (bytes); empty for one process
    links                   the parent's first, then the children's by rank
    eventfds                this process's two, which its peers on this host write; -1 without links within the host
    segment_fd              this host's control segment; -1 if the host has none
    segment_bytes           its size; 0 if the host has none
    launcher_process        LauncherProcess if the launcher's process is watched; else None
    comm                    JobComm if init() was given an MPI communicator; else None
    members                 the launcher's rank of each rank, if init() was given a part of the job; else None
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        launcher: str = "single",
        members: tuple[int, ...] | None = None,
    ) -> None:
        self.rank, self.size, self.launcher, self.members = rank, size, launcher, members
        self.hosts: tuple[int, ...] = (0,)
        self.host_names: tuple[str, ...] = ()
        self.pids: tuple[int, ...] = (os.getpid(),)
        self.local_rank, self.local_size, self.cross_rank, self.cross_size = 0, 1, 0, 1
        self.local_cores: tuple[frozenset[int], ...] = (frozenset(affinity.inherited()),)
        self.store: StoreClient | None = None
        self.store_fd, self.secret, self.epoch = -1, b"", 0
        self.store_key = b""
        self.clock_offset_ns = 0
        self.links: list[Link] = []
        self.segment_fd, self.segment_bytes = -1, 0
        self.eventfds = (-1, -1)
        self.launcher_process: LauncherProcess | None = None
        self.launcher_used_up = False
        self.comm: JobComm | None = None
        self._rendezvous: Rendezvous | None = None
        self._session: Session | None = None
        self._descriptors: DescriptorSet | None = None

    @property
    def setting_option(self) -> str:
        """Launcher.setting_option."""
        from hvd_core._bootstrap import launchers

        launcher = launchers.named(self.launcher)
        return "" if launcher is None else launcher.setting_option

    def read(self, key: str, seconds: float) -> bytes:
        """The value of ``key`` in the store, for the part of init() that comes after connect().

        Raises RankLost if a rank ends meanwhile, BootstrapTimeout after ``seconds``.
        """
        assert self._session is not None
        try:
            value = self._session.read(key, seconds)
        except StoreLost as error:
            raise self.store_lost() from error
        if value is None:
            raise BootstrapTimeout(f"no process set {key!r} in the store within {seconds:g} s")
        return value

    def share(self, key: str, value: bytes) -> None:
        """Adds this rank's ``value`` to those of all ranks under ``key`` in the store."""
        assert self.store is not None
        self.store.gather(key, self.size, (self.rank,), value)

    def shared(self, key: str, seconds: float) -> list[bytes]:
        """The values of all ranks, as share() has added them, by rank; equal ones are one object. Raises as read()
        does."""
        from hvd_core._bootstrap.store import read_gathered

        by_rank: dict[int, bytes] = {}
        for value, ranks in read_gathered(self.read(key, seconds)).commons:
            by_rank.update(dict.fromkeys(ranks, value))
        return [by_rank[rank] for rank in range(self.size)]

    def store_lost(self) -> RankLost:
        """The error that names the process whose end has closed the connection to the store during init()."""
        assert self._rendezvous is not None
        holder = "the launcher, or another process that held the job's store,"
        if self._rendezvous.is_persistent and self.members is not None:
            holder = "the launcher's rank 0, which held the job's store,"
        elif self._rendezvous.is_persistent or self._rendezvous.dies_with_rank_zero:
            known = f" (host {self.host_names[0]}, pid {self.pids[0]})" if self.host_names else ""
            holder = f"rank 0{known}, which held the job's store,"
        return RankLost(f"{holder} ended during init()")

    def leave_init(self) -> None:
        """init() has ended, or the other ranks know why it failed: the store does not report the end of this process."""
        session, self._session = self._session, None
        if session is not None:
            session.release()

    @property
    def holds_store(self) -> bool:
        """Whether the store ends with this process. The other ranks must then have read it before."""
        return self._rendezvous is not None and self._rendezvous.server is not None

    def linger(self, seconds: float = LONGEST_LINGER_SECONDS) -> None:
        """Waits until the other ranks need the store no more, if the store ends with this process. Called after the
        engine has ended. Returns when the engines of all ranks have carried out the agreed operations, when only this
        process is still connected to the store, or after ``seconds``. A persistent store stays until the process ends.
        """
        rendezvous = self._rendezvous
        if rendezvous is None or not rendezvous.store_ends_here:
            return
        assert self.store is not None and rendezvous.server is not None
        deadline = Deadline(seconds)
        with suppress(BootstrapError):
            # Each engine increments this counter at its orderly end; after an abort it stays 0.
            while 0 < self.store.add(f"engine/{self.epoch}/through", 0) < self.size:
                # Two connections are this process's own.
                if rendezvous.server.clients() <= 2 or deadline.passed():
                    return
                time.sleep(0.001)

    def close(self) -> None:
        """Closes every descriptor, and the store if this process serves it. Calling it again does nothing."""
        self.links, self.segment_fd, self.store_fd = [], -1, -1
        if self._rendezvous is not None:
            self._rendezvous.close_listener()  # deletes this rank's entry in the store
        if self._descriptors is not None:
            self._descriptors.close()
        if self.store is not None:
            self.store.close()
        if self._rendezvous is not None:
            self._rendezvous.close()
        if self.comm is not None:
            self.comm.close()
            self.comm = None


def connect(
    environ: Mapping[str, str] | None = None, deadline_s: float | None = None, comm: Any = None
) -> World:
    """Finds the other processes of the job and connects to this process's neighbours in the tree.

    Args:
        environ: mapping with the launcher's variables; os.environ by default.
        deadline_s: seconds until all processes must have called connect(); by default HOROVOD_START_TIMEOUT,
            or 30.
        comm: the launcher's ranks that make up the job, in the order of their ranks in it; None or [] for all; or an
            mpi4py communicator of the job's processes; or a CustomRendezvous.

    A job of one process opens no descriptor.

    Raises:
        ValueError: a variable or ``comm`` is not valid.
        BootstrapTimeout: ranks are missing; it names them.
        BootstrapError: the job cannot be connected for another reason.
    """
    environ = os.environ if environ is None else environ
    transport = environ.get("HOROVOD_CONTROL_TRANSPORT", "auto")
    if transport not in ("auto", "tcp"):
        raise ValueError(f"HOROVOD_CONTROL_TRANSPORT={transport!r} is not one of 'auto', 'tcp'")
    encryption_wanted(os.environ)  # a text that cannot be read is an error here, before the other ranks wait
    silence_s = seconds_of(environ, "HOROVOD_GLOO_TIMEOUT_SECONDS")
    if deadline_s is None:
        deadline_s = seconds_of(environ, "HOROVOD_START_TIMEOUT")
    deadline = Deadline(deadline_s)
    try:
        identity, found, job_comm = _find_store(environ, comm, deadline)
    except BootstrapTimeout as error:
        _add_disagreement(error, environ)
        raise
    logs.set_rank(identity.rank)
    launchers.warn_of_contradiction(identity.whole.size, environ)
    if identity.size == 1:
        return _alone(identity, job_comm)
    assert identity.size is not None and found is not None
    world = World(identity.rank, identity.size, identity.launcher, identity.members)
    world._rendezvous, world.comm = found, job_comm
    try:
        _connect(world, identity, transport, deadline, silence_s)
    except BaseException as error:
        world.close()
        if isinstance(error, BootstrapTimeout):
            _add_disagreement(error, environ)
        raise
    return world


def _add_disagreement(error: BootstrapTimeout, environ: Mapping[str, str]) -> None:
    """Adds to the error what the variables of several launchers say if they differ: the likely cause of missing ranks."""
    text = launchers.disagreement(environ)
    if text:
        error.args = (f"{error}\n{text}",)


def _find_store(
    environ: Mapping[str, str], comm: Any, deadline: Deadline
) -> tuple[Identity, Rendezvous | None, JobComm | None]:
    """Rendezvous is None for a job of one process, JobComm unless ``comm`` is a communicator."""
    # The methods of the rendezvous are imported where they are needed: a job of one process needs none.
    if is_communicator(comm):
        from hvd_core._bootstrap.rendezvous.mpi import find_store_of_comm

        return find_store_of_comm(comm, environ, deadline)
    if comm is not None and not isinstance(comm, Sequence):
        from hvd_core._bootstrap.rendezvous import custom

        if isinstance(comm, custom.CustomRendezvous):
            return *custom.find_store(comm, environ, deadline), None
    identity = select(identify(environ), comm)
    if identity.size == 1 and identity.launched is None:
        return identity, None, None
    from hvd_core._bootstrap import rendezvous

    if identity.size == 1:
        rendezvous.attend(identity, environ, deadline)
        return identity, None, None
    return *rendezvous.find_store(identity, environ, deadline), None


def _alone(identity: Identity, comm: JobComm | None = None) -> World:
    import socket

    world = World(launcher=identity.launcher, members=identity.members)
    world.comm = comm
    world.host_names = (socket.gethostname(),)
    return world


def _connect(world: World, identity: Identity, transport: str, deadline: Deadline, silence_s: float) -> None:
    from hvd_core._bootstrap.hosts import host_name
    from hvd_core._bootstrap.launchers import process
    from hvd_core._bootstrap.launchers.slurm import in_step
    from hvd_core._bootstrap.rendezvous import mpi4py_support
    from hvd_core._bootstrap.store import StoreClient, encryption, open_store_connection
    from hvd_core._bootstrap.store.session import Session

    found = world._rendezvous
    assert found is not None and found.address is not None
    world.secret, world.epoch = found.secret, found.epoch
    world.launcher_used_up = mpi4py_support.process_manager_is_used() and in_step(os.environ)
    world._descriptors = DescriptorSet()
    at = (found.address, found.secret, world.rank, found.epoch, deadline)
    refused = _lost_with_rank_zero if found.dies_with_rank_zero else None
    world.store = StoreClient(*at, refused)
    found.hold(deadline)
    session = Session(world.store, found.secret, world.rank, world.size, found.epoch, deadline, silence_s)
    world._session = session
    try:
        world.launcher_process = session.launcher = process.watch(identity, host_name(os.environ))
        if session.launcher is not None:
            world._descriptors.own(session.launcher.fd)
        session.attend(identity, host_name(os.environ), not found.dies_with_rank_zero)
        if found.server is not None:
            encryption.check_server(found.address)
        found.open(session)
        sock, world.store_key = open_store_connection(*at, refused)
        world.store_fd = world._descriptors.own(sock).fileno()
        _build(world, session, found, identity, transport, world._descriptors)
        _finish(session, found)
    except BaseException as error:  # KeyboardInterrupt too: the other ranks wait
        cause = _cause(session, error, world)
        session.fail(cause)
        found.give_up(cause, own_connections=1 + (world.store_fd >= 0))
        session.release()
        if cause is error:
            raise
        raise cause from error


def _clock_offset(session: Session, hosts: tuple[int, ...], neighbours: Neighbours) -> int:
    if len(set(hosts)) == 1:
        return 0
    from hvd_core._bootstrap.hosts import offset_by_wall_clocks, offset_to_rank_0

    # Every rank must do the same: rank 0 says which.
    if neighbours.exact:
        return offset_to_rank_0(session, list(hosts))[0]
    return offset_by_wall_clocks(session, hosts, neighbours.wall_ns)[0]


def _lost_with_rank_zero() -> None:
    raise RankLost("rank 0 ended during init(): its store, to which the ranks connect, is gone")


def _cause(session: Session, error: BaseException, world: World) -> BaseException:
    """The failure or the end of another rank, if a connection of this rank broke off for that reason; else `error`."""
    if isinstance(error, StoreLost):
        return world.store_lost()
    if not (isinstance(error, ConnectionError) or isinstance(error.__cause__, ConnectionError)):
        return error
    end = Deadline(min(_REPORT_SECONDS, session.deadline.left()))
    while not end.passed():
        try:
            session.check()
        except StoreLost:
            return world.store_lost()
        except BootstrapError as reported:
            return reported
        time.sleep(0.005)
    return RankLost(f"another rank closed its connection during init(): {error}")


def _build(
    world: World,
    session: Session,
    found: Rendezvous,
    identity: Identity,
    transport: str,
    descriptors: DescriptorSet,
) -> None:
    from hvd_core._bootstrap import hosts, links
    from hvd_core._bootstrap.store import encryption

    roster = hosts.gather_roster(session, transport, descriptors, world.members, found.launched)
    # One rank that asks for TCP is enough, because both ends of a link must be of one kind.
    transport = "tcp" if any(record["transport"] == "tcp" for record in roster.common) else "auto"
    neighbours = hosts.find_neighbours(session, roster, descriptors)
    shape = hosts.topology_of(world.rank, neighbours.leader)
    world.hosts = shape.hosts
    world.host_names, world.pids = tuple(neighbours.host_names), tuple(neighbours.pids)
    encryption.check_ranks([record["encryption"] for record in roster.common], shape.hosts, world.host_names)
    world.local_rank, world.local_size = shape.local_rank, shape.local_size
    world.cross_rank, world.cross_size = shape.cross_rank, shape.cross_size
    world.local_cores = tuple(affinity.from_text(roster.group[other]["cores"]) for other in shape.local_ranks)
    # Only the count is compared: an oversubscribed mpirun assigns local ranks in an order of its own.
    if identity.local_size not in (None, shape.local_size):
        _log.warning(
            "%s started %d processes on this host, of which %d can reach each other here: local_size() is %d",
            identity.launcher,
            identity.local_size,
            shape.local_size,
            shape.local_size,
        )
    world.links, world.segment_fd, world.eventfds = links.make_links(
        session, shape, neighbours, transport, descriptors
    )
    if world.segment_fd >= 0:
        world.segment_bytes = links.segment_bytes(shape.local_size)
    world.clock_offset_ns = _clock_offset(session, world.hosts, neighbours)
    _all_up(session, not found.dies_with_rank_zero)


def _all_up(session: Session, store_stays: bool) -> None:
    """Returns when every rank has all its links, so that no key of this init() is needed any more."""
    session.gather("up")

    def missing() -> str:
        absent = session.absent("up")
        late = name_ranks(absent) if absent else "the last rank"
        return f"{late} did not get connected to all neighbours"

    if session.rank == 0:
        session.gathered("up", missing)
        session.all_may_go(store_stays)
    else:
        session.wait_to_go(missing)


def _finish(session: Session, found: Rendezvous) -> None:
    """Makes sure that no rank needs the store for init() any more, so that shutdown() may follow immediately."""
    session.look = None  # all members are connected
    session.all_have_come()
    found.close_listener()
    if not found.dies_with_rank_zero:
        return
    if session.rank != 0:
        if session.count("left") == session.size - 1:
            session.put("all left", True)
    else:
        # The store ends with rank 0, so the other ranks must have finished with it.
        session.wait("all left", lambda: "not all ranks finished init()")
