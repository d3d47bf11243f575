"""The port of a tree link: known ranks are accepted once; all other connections are refused and delay no rank."""

import os
import socket

import pytest

from hvd_core._base.auth import client_handshake
from hvd_core._base.listener import Acceptor
from hvd_core._base.sockets import Deadline
from hvd_core._bootstrap import AuthenticationError

SECRET = bytes(range(32))


@pytest.fixture
def door():
    listener = socket.create_server(("127.0.0.1", 0))
    acceptor = Acceptor(listener, SECRET, b"link", 5, {1, 2})
    yield listener.getsockname(), acceptor
    acceptor.close()


def knock(address, rank, secret=SECRET, purpose=b"link", epoch=5):
    sock = socket.create_connection(address)
    try:
        client_handshake(sock, secret, purpose, rank, epoch, Deadline(5))
    except BaseException:
        sock.close()
        raise
    return sock


def test_link_port_accepts_known_ranks_among_garbage(door):
    address, acceptor = door
    strangers = [socket.create_connection(address) for _ in range(4)]
    strangers[1].sendall(b"hello?")
    strangers[2].sendall(os.urandom(200))
    strangers[3].sendall(b"hvdauth1" + bytes(40))
    ours = [knock(address, rank) for rank in (1, 2)]
    for rank, sock in zip((1, 2), ours, strict=True):
        peer, _ = acceptor.wait_for(rank, 5)
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
def test_link_port_refuses(door, lie):
    address, acceptor = door
    with pytest.raises(AuthenticationError):
        knock(address, **{"rank": 1, **lie})
    assert acceptor.wait_for(1, 0.05) is None
    knock(address, 1).close()
    acceptor.wait_for(1, 5)[0].close()


def test_both_ends_of_a_connection_have_its_key(door):
    address, acceptor = door
    keys = set()
    for rank in (1, 2):
        with socket.create_connection(address) as sock:
            key = client_handshake(sock, SECRET, b"link", rank, 5, Deadline(5))
            peer, same = acceptor.wait_for(rank, 5)
            peer.close()
        assert key == same and len(key) == 32
        keys.add(key)
    assert len(keys) == 2 and SECRET not in keys


def test_link_port_takes_each_rank_once(door):
    address, acceptor = door
    first = knock(address, 1)
    with pytest.raises(AuthenticationError):
        knock(address, 1)
    acceptor.wait_for(1, 5)[0].close()
    first.close()
