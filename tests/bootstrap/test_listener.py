"""Authenticated listeners: known ranks are accepted once, other connections are refused and delay no rank, and a process
without descriptors neither spins nor waits indefinitely."""

import errno
import os
import resource
import selectors
import socket
import struct
import time

import pytest

from hvd_core._base import listener as listener_module
from hvd_core._base.auth import client_handshake
from hvd_core._base.listener import AuthenticatedListener, Listener, ListenerThread, listen
from hvd_core._base.sockets import Deadline
from hvd_core._bootstrap import AuthenticationError
from hvd_core._bootstrap.links import RankListener

SECRET = bytes(range(32))


@pytest.fixture
def link_port():
    listener = socket.create_server(("127.0.0.1", 0))
    accepting = RankListener(listener, SECRET, b"link", 5, {1, 2})
    yield listener.getsockname(), accepting
    accepting.close()


def knock(address, rank, secret=SECRET, purpose=b"link", epoch=5):
    sock = socket.create_connection(address)
    try:
        client_handshake(sock, secret, purpose, rank, epoch, Deadline(5))
    except BaseException:
        sock.close()
        raise
    return sock


def test_link_port_accepts_known_ranks_among_garbage(link_port):
    address, accepting = link_port
    strangers = [socket.create_connection(address) for _ in range(4)]
    strangers[1].sendall(b"hello?")
    strangers[2].sendall(os.urandom(200))
    strangers[3].sendall(b"hvdauth1" + bytes(40))
    ours = [knock(address, rank) for rank in (1, 2)]
    for rank, sock in zip((1, 2), ours, strict=True):
        peer, _ = accepting.wait_for(rank, 5)
        sock.sendall(b"x")
        peer.settimeout(5)
        assert peer.recv(1) == b"x"
        peer.close()
        sock.close()
    for sock in strangers:
        sock.close()


@pytest.mark.parametrize(
    "lie",
    [{"secret": b"z" * 32}, {"purpose": b"store"}, {"epoch": 4}, {"rank": 7}],
    ids=["secret", "purpose", "epoch", "rank"],
)
def test_link_port_refuses(link_port, lie):
    address, accepting = link_port
    with pytest.raises(AuthenticationError):
        knock(address, **{"rank": 1, **lie})
    assert accepting.wait_for(1, 0.05) is None
    knock(address, 1).close()
    accepting.wait_for(1, 5)[0].close()


def test_both_ends_of_a_connection_have_its_key(link_port):
    address, accepting = link_port
    keys = set()
    for rank in (1, 2):
        with socket.create_connection(address) as sock:
            key = client_handshake(sock, SECRET, b"link", rank, 5, Deadline(5))
            peer, same = accepting.wait_for(rank, 5)
            peer.close()
        assert key == same and len(key) == 32
        keys.add(key)
    assert len(keys) == 2 and SECRET not in keys


def test_link_port_takes_each_rank_once(link_port):
    address, accepting = link_port
    first = knock(address, 1)
    with pytest.raises(AuthenticationError):
        knock(address, 1)
    accepting.wait_for(1, 5)[0].close()
    first.close()


class Refused:
    """A Listener in a loop of this thread, while no descriptor is free."""

    def __init__(self, **options):
        self.accepted, self.paused = [], []
        self.listener = Listener(listen("127.0.0.1"), self.accepted.append, self.paused.append, **options)
        self.selector = selectors.DefaultSelector()
        self.listener.register(self.selector)
        self.client = socket.socket()
        self.limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        os.close(free := os.dup(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, self.limits[1]))
        self.client.connect(self.listener.address)

    def run(self, until):
        turns = 0
        while not until():
            wait_s = self.listener.wait_s()
            for key, _ in self.selector.select(0.1 if wait_s is None else wait_s):
                key.data()
            self.listener.advance(time.monotonic())
            turns += 1
        return turns

    def allow(self):
        resource.setrlimit(resource.RLIMIT_NOFILE, self.limits)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.allow()
        self.listener.close()
        self.selector.close()
        self.client.close()


def test_without_descriptors_it_pauses_and_tries_again():
    with Refused() as refused:
        end = time.monotonic() + 0.5
        assert refused.run(lambda: time.monotonic() > end) < 50  # it does not spin
        assert len(refused.paused) == 1 and refused.paused[0].errno == errno.EMFILE
        refused.allow()
        refused.run(lambda: refused.accepted)
        refused.accepted[0].close()


def test_without_descriptors_it_fails_after_a_while():
    failed = []
    with Refused(on_failure=failed.append, patience_s=0.3) as refused:
        refused.run(lambda: failed)
        assert failed[0].errno == errno.EMFILE and refused.listener.due() == []
        refused.allow()
        with pytest.raises(ConnectionResetError):
            refused.client.recv(1)


def test_a_silent_connection_is_closed_in_time(monkeypatch):
    monkeypatch.setattr(listener_module, "HANDSHAKE_SECONDS", 0.2)
    refused = []
    accepting = AuthenticatedListener(
        listen("127.0.0.1"), SECRET, b"link", lambda *_: None, on_refused=refused.append
    )
    thread = ListenerThread(accepting, "test")
    try:
        with socket.create_connection(accepting.address) as silent:
            while silent.recv(100):
                pass
    finally:
        thread.close()
    assert refused == ["no proof of the secret in time"]


@pytest.mark.parametrize("reset", [False, True])
def test_a_peer_that_leaves_is_no_refusal(reset):
    refused = []
    accepting = AuthenticatedListener(
        listen("127.0.0.1"), SECRET, b"link", lambda *_: None, on_refused=refused.append
    )
    thread = ListenerThread(accepting, "test")
    try:
        with socket.create_connection(accepting.address) as probe:
            probe.recv(100)  # the challenge
            if reset:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end = time.monotonic() + 5
        while accepting.due() and time.monotonic() < end:
            time.sleep(0.01)
        assert accepting.due() == []  # no handshake is left
    finally:
        thread.close()
    assert refused == []


def test_the_oldest_silent_connection_makes_room():
    refused, admitted = [], []
    accepting = AuthenticatedListener(
        listen("127.0.0.1"),
        SECRET,
        b"link",
        lambda sock, handshake: (admitted.append(handshake.rank), sock.close()),
        on_refused=refused.append,
        max_pending=2,
    )
    thread = ListenerThread(accepting, "test")
    try:
        silent = [socket.create_connection(accepting.address) for _ in range(2)]
        for sock in silent:
            assert len(sock.recv(100)) == 40
        knock(accepting.address, 1).close()
        assert silent[0].recv(100) == b""
        for sock in silent:
            sock.close()
    finally:
        thread.close()
    assert admitted == [1] and "too many connections" in refused[0]
