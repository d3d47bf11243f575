"""Authenticated listeners: known ranks are accepted once, other connections are refused and delay no rank."""

import os
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from hvd_core._base import listener as listener_module
from hvd_core._base.auth import client_handshake
from hvd_core._base.listener import AuthenticatedListener, ListenerThread, listen
from hvd_core._base.sockets import AuthenticationError, Deadline
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
    with ThreadPoolExecutor() as pool:
        ours = [pool.submit(knock, address, rank) for rank in (1, 2)]
        peers = [accepting.wait_for(rank, 5)[0] for rank in (1, 2)]
        ours = [one.result() for one in ours]
    for sock, peer in zip(ours, peers, strict=True):
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
    with ThreadPoolExecutor() as pool:
        wrong = pool.submit(knock, address, **{"rank": 1, **lie})
        while not wrong.done():
            assert accepting.wait_for(1, 0.05) is None
        with pytest.raises(AuthenticationError):
            wrong.result()
        right = pool.submit(knock, address, 1)
        accepting.wait_for(1, 5)[0].close()
        right.result().close()


def test_both_ends_of_a_connection_have_its_key(link_port):
    address, accepting = link_port
    keys = set()
    for rank in (1, 2):
        with socket.create_connection(address) as sock, ThreadPoolExecutor() as pool:
            client = pool.submit(client_handshake, sock, SECRET, b"link", rank, 5, Deadline(5))
            peer, same = accepting.wait_for(rank, 5)
            key = client.result()
            peer.close()
        assert key == same and len(key) == 32
        keys.add(key)
    assert len(keys) == 2 and SECRET not in keys


def test_link_port_takes_each_rank_once(link_port):
    address, accepting = link_port
    with ThreadPoolExecutor() as pool:
        first = pool.submit(knock, address, 1)
        accepting.wait_for(1, 5)[0].close()
        second = pool.submit(knock, address, 1)
        while not second.done():
            assert accepting.wait_for(1, 0.05) is None
        with pytest.raises(AuthenticationError):
            second.result()
        first.result().close()


def test_a_silent_connection_is_closed_in_time(monkeypatch):
    monkeypatch.setattr(listener_module, "HANDSHAKE_SECONDS", 0.2)
    refused = []
    accepting = AuthenticatedListener(
        listening := listen("127.0.0.1"), SECRET, b"link", lambda *_: None, on_refused=refused.append
    )
    with (
        closing(ListenerThread(accepting, "test")),
        socket.create_connection(listening.getsockname()) as silent,
    ):
        while silent.recv(100):
            pass
    assert refused == ["no proof of the secret in time"]


@pytest.mark.parametrize("reset", [False, True])
def test_a_peer_that_leaves_is_no_refusal(reset):
    refused = []
    accepting = AuthenticatedListener(
        listening := listen("127.0.0.1"), SECRET, b"link", lambda *_: None, on_refused=refused.append
    )
    with closing(ListenerThread(accepting, "test")):
        with socket.create_connection(listening.getsockname()) as probe:
            probe.recv(100)  # the challenge
            if reset:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end = time.monotonic() + 5
        while accepting.due() and time.monotonic() < end:
            time.sleep(0.01)
        assert accepting.due() == []  # no handshake is left
    assert refused == []


def test_the_oldest_silent_connection_makes_room():
    refused, admitted = [], []
    accepting = AuthenticatedListener(
        listening := listen("127.0.0.1"),
        SECRET,
        b"link",
        lambda sock, handshake: (admitted.append(handshake.rank), sock.close()),
        on_refused=refused.append,
        max_pending=2,
    )
    with closing(ListenerThread(accepting, "test")):
        silent = [socket.create_connection(listening.getsockname()) for _ in range(2)]
        for sock in silent:
            assert len(sock.recv(100)) == 40
        knock(listening.getsockname(), 1).close()
        assert silent[0].recv(100) == b""
        for sock in silent:
            sock.close()
    assert admitted == [1] and "too many connections" in refused[0]
