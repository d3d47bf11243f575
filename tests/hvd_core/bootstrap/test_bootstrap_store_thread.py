"""The store's own thread: it needs no interpreter, keeps strangers from growing its process, and survives fork()."""

import os
import socket
import struct
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from bootstrap_job import STORE_PROGRAM, environment
from harness import run_to_the_end
from hvd_core._base.auth import CHALLENGE_BYTES, MAGIC, client_handshake
from hvd_core._base.sockets import Deadline, recv_exact, split_address
from hvd_core._bootstrap import store
from hvd_core._bootstrap.store import StoreClient, StoreServer, open_store_connection

SECRET = bytes(range(32))
HELD_PROGRAM = Path(__file__).with_name("bootstrap_store_held.py")
MEBIBYTE = 1 << 20


@contextmanager
def store_process(*command):
    """(a process that has a store, the store's address)"""
    process = subprocess.Popen(
        [sys.executable, *map(str, command)], env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        process.stdin.write(SECRET.hex() + "\n")
        process.stdin.flush()
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def test_a_store_answers_while_its_process_holds_the_interpreter():
    with store_process(HELD_PROGRAM) as (process, address):
        clients = [StoreClient(address, SECRET) for _ in range(2)]
        for count in range(500):
            clients[count % 2].set("key", b"%d" % count)
            assert clients[1 - count % 2].get("key", 5) == b"%d" % count
        late = StoreClient(address, SECRET)  # a handshake needs no interpreter either
        assert late.add("sum", 2) == 2
        for client in (*clients, late):
            client.close()
        # All of that happened during one call in that process.
        assert process.communicate(timeout=60)[0] == "released\n"


def test_strangers_do_not_grow_a_store():
    with store_process(STORE_PROGRAM, "127.0.0.1") as (process, address):
        place = split_address(address)

        def strangers(count):
            for number in range(count):
                with socket.create_connection(place) as sock:
                    recv_exact(sock, CHALLENGE_BYTES, Deadline(30))
                    sock.sendall((b"", MAGIC, MAGIC + bytes(79))[number % 3])

        strangers(300)
        client = StoreClient(address, SECRET)
        before = psutil.Process(process.pid).memory_info().rss
        strangers(3000)
        assert client.add("alive", 1) == 1
        assert psutil.Process(process.pid).memory_info().rss - before < MEBIBYTE
        client.close()


def test_a_rank_that_was_closed_among_many_connections_tries_again(monkeypatch):
    """The store keeps 256 connections without a proof: a rank's is closed here while the rank is slow to answer."""
    crowd, answers = [], []

    def slow_handshake(sock, *args):
        while not crowd or (not answers and len(crowd) < 256):
            crowd.append(socket.create_connection(sock.getpeername()))
            recv_exact(crowd[-1], CHALLENGE_BYTES, Deadline(30))
        answers.append(sock)
        return client_handshake(sock, *args)

    monkeypatch.setattr(store, "client_handshake", slow_handshake)
    with StoreServer("127.0.0.1", SECRET) as server:
        client = StoreClient(server.address, SECRET)
        assert client.add("alive", 1) == 1
        client.close()
    for sock in crowd:
        sock.close()
    assert len(answers) == 2


def test_a_stranger_that_sends_much_is_cut_off_after_the_handshake():
    with store_process(STORE_PROGRAM, "127.0.0.1") as (process, address):
        before = psutil.Process(process.pid).memory_info().rss
        with socket.create_connection(split_address(address), timeout=60) as sock:
            recv_exact(sock, CHALLENGE_BYTES, Deadline(30))
            with pytest.raises(ConnectionError):
                for _ in range(256):
                    sock.sendall(MAGIC + bytes(MEBIBYTE))
        assert psutil.Process(process.pid).memory_info().rss - before < MEBIBYTE


def test_a_client_that_does_not_read_gets_no_further_answers_and_all_of_them_later():
    count, value = 96, os.urandom(MEBIBYTE)
    with store_process(STORE_PROGRAM, "127.0.0.1") as (process, address):
        client = StoreClient(address, SECRET)
        client.set("big", value)
        before = psutil.Process(process.pid).memory_info().rss
        sock, _ = open_store_connection(address, SECRET)
        get = struct.pack("<IBH", 3 + 3 + 8, 2, 3) + b"big" + struct.pack("<q", 0)
        sock.sendall(get * count)
        for number in range(50):
            client.set(f"key{number}", b"value")  # the others are served
        assert psutil.Process(process.pid).memory_info().rss - before < 32 * MEBIBYTE
        for _ in range(count):
            (size,) = struct.unpack("<I", recv_exact(sock, 4, Deadline(60)))
            assert recv_exact(sock, size, Deadline(60)) == b"\0" + value
        sock.close()
        client.close()


def test_a_forked_child_has_no_server():
    told, tell = os.pipe()
    before = set(os.listdir("/proc/self/fd"))
    with StoreServer("127.0.0.1", SECRET) as server:
        client = StoreClient(server.address, SECRET)
        child = os.fork()
        if child == 0:
            # Nothing here may raise into pytest.
            left = set(os.listdir("/proc/self/fd")) - before
            for number in left:
                with suppress(OSError):  # the descriptor of the listing itself
                    os.write(tell, f"{number}: {os.readlink(f'/proc/self/fd/{number}')}\n".encode())
            server.close()
            os._exit(len(left))
        os.close(tell)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with open(told) as report:
            assert (status, report.read()) == (0, "")
        assert client.add("alive", 1) == 1
        client.close()


def descriptors_are_closed():
    """As a daemon does that closes all descriptors that it does not know."""
    server = StoreServer("127.0.0.1", SECRET)
    os.closerange(3, 256)
    server.close()
    server.close()
    print("closed")


def test_a_server_whose_descriptors_the_program_has_closed_can_be_closed():
    out = run_to_the_end(1, descriptors_are_closed, init=None)
    assert "closed" in out, out
