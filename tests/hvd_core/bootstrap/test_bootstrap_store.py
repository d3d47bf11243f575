"""The store over real sockets: operations, waits, limits, and what strangers at its port can do (nothing)."""

import os
import shlex
import socket
import struct
import subprocess
import sys
import threading
import time

import psutil
import pytest

from bootstrap_job import STORE_PROGRAM, environment
from hvd_core._base.auth import ANSWER_BYTES, CHALLENGE_BYTES, MAGIC
from hvd_core._base.sockets import (
    AuthenticationError,
    BootstrapError,
    BootstrapTimeout,
    Deadline,
    recv_exact,
    split_address,
)
from hvd_core._bootstrap import store
from hvd_core._bootstrap.store import StoreClient, StoreServer, open_store_connection

SECRET = bytes(range(32))


@pytest.fixture
def server():
    with StoreServer("127.0.0.1", SECRET) as server:
        yield server


@pytest.fixture
def client(server):
    client = StoreClient(server.address, SECRET)
    yield client
    client.close()


def answer_of(sock):
    (count,) = struct.unpack("<I", recv_exact(sock, 4, Deadline(30)))
    data = recv_exact(sock, count, Deadline(30))
    return data[0], data[1:]


def request(op, key, payload=b""):
    return struct.pack("<IBH", 3 + len(key) + len(payload), op, len(key)) + key + payload


def test_store_operations(client):
    client.set("a", b"one")
    assert client.get("a", 0) == b"one"
    client.set("a", b"")
    assert client.get("a", 5) == b""
    assert [client.add("n", 3), client.add("n", -5), client.get("n", 0)] == [3, -2, b"-2"]
    client.delete("a")
    client.delete("a")
    with pytest.raises(BootstrapTimeout, match="no process set 'a' in the store at tcp://"):
        client.get("a", 0)


def test_store_get_waits_until_the_key_is_there(server, client):
    other = StoreClient(server.address, SECRET)
    started = time.monotonic()
    threading.Timer(0.2, other.set, ("late", b"x" * (5 << 20))).start()
    assert client.get("late", 60) == b"x" * (5 << 20)
    assert 0.15 < time.monotonic() - started < 40
    started = time.monotonic()
    with pytest.raises(BootstrapTimeout):
        client.get("never", 0.3)
    assert 0.25 < time.monotonic() - started < 20
    other.close()


def test_store_joins_the_parts_of_all_members(server, client):
    def told(key):
        return store.read_gathered(client.get(key, 0))

    assert client.absent("k", 4) == [0, 1, 2, 3]
    assert client.gather("k", 4, [3, 1], b"same", b"of 3 and 1")
    assert client.gather("k", 4, [2], b"other", b"of 2", label="l")
    assert client.get("k/2", 0) == b"of 2" and client.get("k/3", 0) == b"of 3 and 1"
    assert not client.gather("k", 4, [2, 0], b"same", b"again"), "2 has a part already"
    assert client.absent("k", 4) == [0]
    waiting = StoreClient(server.address, SECRET)
    assert waiting.wait_any(("k:l", "never"), 0) is None
    assert client.gather("k", 4, [0], b"same")
    assert waiting.wait_any(("k:l", "never"), 60) is not None
    waiting.close()
    commons = [(b"same", [0, 1, 3]), (b"other", [2])]
    assert told("k") == store.Gathered(commons, [((3, 1), b"of 3 and 1")])
    assert told("k:l") == store.Gathered(commons, [((2,), b"of 2")])
    assert client.gather("k", 4, [7], b"late") and told("k").commons == commons


def test_store_gathers_as_many_as_the_first_member_says(client):
    assert client.gather("k", 3, [1], b"three") and client.gather("k", 3, [2], b"three")
    assert client.gather("k", 2, [0], b"two")
    assert store.read_gathered(client.get("k", 0)).commons == [(b"two", [0]), (b"three", [1, 2])]


def test_store_clears_a_prefix(client):
    for key in ("a/1", "a/2", "ab", "b"):
        client.set(key, b"")
    client.gather("a/g", 2, [1])
    client.clear("a/")
    for key in ("a/1", "a/2"):
        with pytest.raises(BootstrapTimeout):
            client.get(key, 0)
    assert client.get("ab", 0) == client.get("b", 0) == b"" and client.absent("a/g", 2) == [0, 1]


def test_store_add_on_text_is_an_error_and_the_connection_lives_on(client):
    client.set("text", b"abc")
    with pytest.raises(BootstrapError, match="not a number"):
        client.add("text", 1)
    client.set("big", b"%d" % (2**63 - 1))
    with pytest.raises(BootstrapError, match="not a number of 64 bits"):
        client.add("big", 1)
    assert client.get("text", 0) == b"abc"


def test_store_wire_format_answers_pipelined_requests_in_order(server, client):
    sock, _ = open_store_connection(server.address, SECRET)
    forever = struct.pack("<q", -1)
    sock.sendall(request(2, b"k", forever) + request(3, b"c", struct.pack("<q", 7)) + request(99, b""))
    time.sleep(0.1)
    assert client.add("c", 1) == 1, "a request behind a waiting GET was served before it"
    client.set("k", b"v")
    assert answer_of(sock) == (0, b"v")
    assert answer_of(sock) == (0, struct.pack("<q", 8))
    status, text = answer_of(sock)
    assert status == 2 and b"unknown operation 99" in text
    sock.sendall(request(2, b"absent", struct.pack("<q", 0)) + request(4, b"k"))
    assert [answer_of(sock), answer_of(sock)] == [(1, b""), (0, b"")]
    sock.close()


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack("<I", 0),
        struct.pack("<I", 2) + b"ab",
        struct.pack("<I", 17 << 20),
        struct.pack("<IBH", 8, 1, 2000) + b"abcde",
        struct.pack("<IBH", 8, 1, 6) + b"abcde",
        request(2, b"k", b"short"),
        request(3, b"k", bytes(9)),
        request(7, b"k", b"short"),
        request(7, b"k", store.part_bytes(2, [])),
        request(7, b"k", store.part_bytes(2, [1, 1])),
        request(7, b"k", store.part_bytes(2, [1 << 20])),
        request(7, b"k", store.part_bytes(2, [0], b"common")[:-1]),
        request(7, b"k", struct.pack("<III", 2, 1 << 31, 0)),
        request(8, b"k", b""),
    ],
)
def test_store_cuts_off_who_breaks_the_format(server, client, garbage):
    sock, _ = open_store_connection(server.address, SECRET)
    sock.sendall(garbage)
    sock.settimeout(30)
    assert sock.recv(1) == b""
    sock.close()
    client.set("alive", b"1")
    assert client.get("alive", 0) == b"1"


def test_store_refuses_a_wrong_secret(server, client):
    with pytest.raises(AuthenticationError, match="does not accept this job's secret"):
        StoreClient(server.address, b"y" * 32)
    assert client.add("x", 1) == 1


def test_store_client_refuses_a_server_that_does_not_know_the_secret():
    impostor = StoreServer("127.0.0.1", b"another secret of some length")
    with impostor, socket.create_server(("127.0.0.1", 0)) as fake:

        def echo():
            peer, _ = fake.accept()
            with peer:
                peer.sendall(MAGIC + bytes(32))
                answer = recv_exact(peer, ANSWER_BYTES, Deadline(30))
                # Reflecting the client's own proof is the cheapest forgery.
                peer.sendall(answer[-32:])

        threading.Thread(target=echo, daemon=True).start()
        with pytest.raises(AuthenticationError, match="the server does not know this job's secret"):
            StoreClient(f"tcp://127.0.0.1:{fake.getsockname()[1]}", SECRET)
        with pytest.raises(AuthenticationError):
            StoreClient(impostor.address, SECRET)


def test_store_ignores_garbage_and_silence_at_its_port(server, client):
    address = split_address(server.address)
    strangers = []
    for greeting in (
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        os.urandom(4096),
        MAGIC,
        MAGIC + bytes(80),
        bytes(1 << 16),
    ):
        sock = socket.create_connection(address)
        sock.settimeout(30)
        assert recv_exact(sock, CHALLENGE_BYTES, Deadline(30)).startswith(MAGIC)
        try:
            sock.sendall(greeting)
        except OSError:
            pass
        strangers.append(sock)
    for number in range(50):
        client.set(f"k{number}", b"v")
    for sock in strangers[1:3]:
        with pytest.raises((ConnectionError, AssertionError)):
            assert sock.recv(1)
    for sock in strangers:
        sock.close()


def test_store_survives_more_strangers_than_it_keeps(server, client):
    strangers = [socket.create_connection(split_address(server.address)) for _ in range(300)]
    late = StoreClient(server.address, SECRET)
    late.set("here", b"1")
    assert client.get("here", 5) == b"1"
    for sock in strangers:
        sock.close()
    late.close()


def test_store_drops_who_stays_silent(monkeypatch):
    monkeypatch.setattr(store, "HANDSHAKE_SECONDS", 1.5)  # the client must make it
    with StoreServer("127.0.0.1", SECRET) as server:
        client = StoreClient(server.address, SECRET)
        with socket.create_connection(split_address(server.address)) as silent:
            silent.settimeout(30)
            recv_exact(silent, CHALLENGE_BYTES, Deadline(30))
            started = time.monotonic()
            assert silent.recv(1) == b"" and time.monotonic() - started < 20
        assert client.add("n", 1) == 1, "a connection that has proved the secret stays"
        client.close()


def test_store_recovers_when_it_runs_out_of_descriptors():
    program = shlex.join([sys.executable, str(STORE_PROGRAM), "127.0.0.1"])
    server = subprocess.Popen(
        ["sh", "-c", f"ulimit -n 24; exec {program}"], env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    server.stdin.write(SECRET.hex() + "\n")
    server.stdin.flush()
    address = server.stdout.readline().strip()
    strangers = [socket.create_connection(split_address(address)) for _ in range(40)]

    def spent(seconds):
        before = psutil.Process(server.pid).cpu_times().user
        time.sleep(seconds)
        return psutil.Process(server.pid).cpu_times().user - before

    # Until it has seen to them all, which may take a while.
    assert any(spent(0.5) < 0.1 for _ in range(10)), "it spins"
    for sock in strangers:
        sock.close()
    client = StoreClient(address, SECRET)
    assert client.add("n", 1) == 1
    client.close()
    server.communicate(timeout=20)


def test_store_serves_many_clients_at_once(server):
    clients = [StoreClient(server.address, SECRET, rank=number) for number in range(100)]
    results = []

    def work(number):
        clients[number].add("sum", number)
        results.append(clients[number].get("go", 20))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 100)]
    for thread in threads:
        thread.start()
    while clients[0].add("sum", 0) != sum(range(100)):
        time.sleep(0.01)
    clients[0].set("go", b"!")
    for thread in threads:
        thread.join()
    assert results == [b"!"] * 99
    for client in clients:
        client.close()


def test_store_client_says_when_the_store_has_ended(server, client):
    server.close()
    with pytest.raises(BootstrapError, match="lost the connection to the store"):
        client.get("x", 5)


def test_store_limits_what_a_client_sends(client):
    with pytest.raises(ValueError, match="too large"):
        client.set("k" * 1025, b"")
    with pytest.raises(ValueError, match="too large"):
        client.set("k", bytes(16 << 20))
    client.set("k" * 1024, bytes((16 << 20) - 1027))


def test_store_needs_a_secret():
    with pytest.raises(ValueError, match="at least 16 bytes"):
        StoreServer("127.0.0.1")


def test_store_over_ipv6():
    try:
        server = StoreServer("::1", SECRET)
    except OSError as error:
        pytest.skip(f"no IPv6 loopback here: {error}")
    with server:
        client = StoreClient(server.address, SECRET)
        assert server.address.startswith("tcp://[::1]:") and client.add("n", 1) == 1
        client.close()


def test_store_server_sleeps_when_idle_and_leaves_nothing_open():
    before = set(os.listdir("/proc/self/fd"))
    with StoreServer("127.0.0.1", SECRET) as server:
        client = StoreClient(server.address, SECRET)
        client.set("a", b"1")

        def spent(seconds):
            before = time.process_time()
            time.sleep(seconds)
            return time.process_time() - before

        # This process has other threads, and a busy machine counts more; a server that spins does it always.
        assert any(spent(1) < 0.01 for _ in range(5))
        client.close()
    assert set(os.listdir("/proc/self/fd")) <= before
