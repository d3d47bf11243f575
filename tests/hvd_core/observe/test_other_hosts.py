"""The connections between the watchers of a job's hosts take only what a watcher of the job has sent."""

import json
import socket
import struct

import pytest

from hvd_core._base.auth import ANSWER_BYTES, CHALLENGE_BYTES, client_handshake
from hvd_core._base.sockets import Deadline, recv_exact
from hvd_core._observe.watch.job_figures import JobFigures
from hvd_core._observe.watch.shared_rings import Place, SharedRings
from hvd_core._observe.watch.watcher import HostPoller

KEY = bytes(range(32))
PATIENCE_S = 100


@pytest.fixture
def poller():
    """(the figures of a first host whose page is open, a new connection to it)."""
    figures = JobFigures(SharedRings(Place()))
    figures.for_page(0, "page")
    listener = socket.create_server(("127.0.0.1", 0))
    poller = HostPoller(listener, KEY, figures)
    address = listener.getsockname()
    with socket.create_connection(address, timeout=PATIENCE_S) as connection:
        yield figures, connection
    poller.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=PATIENCE_S)


def test_a_stranger_is_sent_away(poller):
    _, connection = poller
    recv_exact(connection, CHALLENGE_BYTES, Deadline(PATIENCE_S))
    connection.sendall(b"hvdauth1" + bytes(ANSWER_BYTES - 8))
    assert connection.recv(1) == b""


def test_an_answer_without_the_right_signature_is_not_taken(poller):
    figures, connection = poller
    client_handshake(connection, KEY, b"watcher", 7, 0, Deadline(PATIENCE_S))
    head = recv_exact(connection, 8 + 32, Deadline(PATIENCE_S))
    question = recv_exact(connection, struct.unpack("<Q", head[:8])[0], Deadline(PATIENCE_S))
    assert json.loads(question) == {"after": 0}
    body = b"{}"
    connection.sendall(struct.pack("<Q", len(body)) + bytes(32) + body)
    assert connection.recv(1) == b""
    assert figures.for_page(0, "page")["ranks"] == []
