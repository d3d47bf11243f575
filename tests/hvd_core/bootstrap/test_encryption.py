"""HOROVOD_TLS: the store's connections, ranks that do not agree, hosts without the library."""

import json
import os
import re
import socket
import struct
import threading

import pytest

import hvd_core as hvd
from harness import run_on_ranks
from harness.launch import run_to_the_end
from hvd_core._base.auth import ServerHandshake
from hvd_core._base.sockets import AuthenticationError, BootstrapError, StoreLost, join_address, split_address
from hvd_core._bootstrap.rendezvous.custom import CustomRendezvous, find_store
from hvd_core._bootstrap.store import MAX_ANSWER_BYTES, StoreClient, StoreServer, encryption
from hvd_core._bootstrap.world import connect
from wire import Wire

SECRET = bytes(range(32))
VALUE = b"a value that all ranks know"


@pytest.fixture
def server():
    with StoreServer("127.0.0.1", SECRET) as server:
        yield server


def client_over(wire, encrypted):
    return StoreClient(join_address(*wire.address), SECRET, encrypted=encrypted)


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_program_between_the_store_and_its_client(server, encrypted):
    with Wire(split_address(server.address)) as wire:
        client = client_over(wire, encrypted)
        for number in range(40):
            client.set(f"key {number}", VALUE * number)
            assert client.get(f"key {number}", 5) == VALUE * number
        client.set("big", bytes(5 << 20))
        assert client.get("big", 5) == bytes(5 << 20)
        assert [client.add("n", 3), client.add("n", -5)] == [3, -2]
        assert client.wait_any(("absent", "n"), 5) == (1, b"-2")
        assert client.wait_any(("absent",), 0) is None
        client.delete("n")
        client.close()
        assert (VALUE in wire.seen, b"key 7" in wire.seen) == (not encrypted, not encrypted)


def test_an_answer_that_was_changed_is_an_error(server):
    # The handshake has 72 bytes on the way back; an answer's length, its status, its tag.
    with Wire(split_address(server.address), spoil_at=(1, 72 + 4)) as wire:
        client = client_over(wire, True)
        with pytest.raises(BootstrapError, match=r"store at tcp://.* was changed on the way"):
            client.set("a", VALUE)
        client.close()


def test_a_request_that_was_changed_ends_its_connection_and_no_other(server):
    other = StoreClient(server.address, SECRET)
    with Wire(split_address(server.address), spoil_at=(0, 88 + 8)) as wire:
        client = client_over(wire, True)
        with pytest.raises(StoreLost):
            client.set("a", VALUE)
        client.close()
    other.set("b", VALUE)
    assert other.get("b", 5) == VALUE
    other.close()


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_request_for_encryption_cannot_be_removed_or_added(server, encrypted):
    # The flag is the last word of the identity, behind 8 bytes of magic, 32 of a nonce and 12 of the epoch and the rank.
    with (
        Wire(split_address(server.address), spoil_at=(0, 8 + 32 + 12)) as wire,
        pytest.raises(AuthenticationError, match="does not accept this job's secret"),
    ):
        client_over(wire, encrypted)
    assert server.clients() == 0


@pytest.mark.parametrize("count", [0, MAX_ANSWER_BYTES + 1])
def test_an_answer_of_a_length_that_is_not_possible(count):
    def serve(listener):
        sock, _ = listener.accept()
        with sock:
            host = ServerHandshake(SECRET, b"store")
            sock.sendall(host.challenge)
            while not host.done:
                host.feed(sock.recv(4096))
            sock.sendall(host.confirm + struct.pack("<I", count))
            sock.recv(4096)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        client = StoreClient(join_address(*listener.getsockname()), SECRET)
        with pytest.raises(BootstrapError, match=f"announced an answer of {count} bytes"):
            client.get("a", 5)


def own_address():
    """The address of this host towards others. No packet is sent for that."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("203.0.113.1", 9))
        except OSError:
            pytest.skip("this host has no way to others")
        return sock.getsockname()[0]


def test_a_store_that_encrypts_takes_no_other_connection_of_a_launcher(monkeypatch):
    address = own_address()
    monkeypatch.setenv("HOROVOD_TLS", "1")
    with StoreServer(address, SECRET) as server:
        with pytest.raises(BootstrapError, match=f"on host {re.escape(address)} has HOROVOD_TLS=1, and this"):
            StoreClient(server.address, SECRET, encrypted=False)
        # The ranks compare what they ask for, after they have connected.
        StoreClient(server.address, SECRET, rank=1, encrypted=False).close()
        client = StoreClient(server.address, SECRET)
        client.set("a", VALUE)
        client.close()


def serve_and_reach_without_the_library():
    far, near = "203.0.113.1", "127.0.0.1"
    encryption.check_server(f"tcp://{near}:1")
    assert encryption.required_by({"HOROVOD_TLS": "1"}, near) is False
    assert encryption.required_by({"HOROVOD_TLS": "0"}, far) is False
    for name, call in (
        ("server", lambda: encryption.check_server(f"tcp://{far}:1")),
        ("client", lambda: encryption.required_by({"HOROVOD_TLS": "1"}, far)),
    ):
        try:
            call()
        except BootstrapError as error:
            print(f"{name}: {error}")


def test_what_serves_or_reaches_the_store_fails_at_once_without_the_library():
    env = {"HOROVOD_TLS": "1", "HOROVOD_TLS_LIBRARY": "/nonexistent/libcrypto.so"}
    output = run_to_the_end(1, serve_and_reach_without_the_library, env=env, init=None)
    told = r"HOROVOD_TLS=1 needs .*/nonexistent/libcrypto\.so cannot be"
    assert re.search(rf"server: this process serves the job's store, and {told}", output), output
    assert re.search(rf"client: {told}", output), output


@pytest.mark.parametrize("value", ["psk", "2x"])
def test_a_text_that_is_neither_yes_nor_no(monkeypatch, value):
    monkeypatch.setenv("HOROVOD_TLS", value)
    with pytest.raises(ValueError, match=r"HOROVOD_TLS=.* is neither 0 nor 1"):
        connect({})


@pytest.mark.parametrize("value", ["", "0", "1"])
def test_a_job_of_one_process_has_nothing_to_encrypt(monkeypatch, value):
    monkeypatch.setenv("HOROVOD_TLS", value)
    world = connect({})
    assert world.size == 1
    world.close()


def asks_if(ranks):
    """Some ranks ask for encryption. Returns the text of the error."""
    if int(os.environ["HOROVOD_RANK"]) in ranks:
        os.environ["HOROVOD_TLS"] = "1"
    try:
        hvd.init()
    except BootstrapError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize(
    ("ranks", "words"),
    [((0,), ("rank 0", "ranks 1 and 2")), ((1, 2), ("ranks 1 and 2", "rank 0"))],
)
def test_ranks_that_disagree_are_named_on_every_rank(ranks, words):
    done = run_on_ranks(3, asks_if, ranks, env={"HOROVOD_SIMULATED_HOSTS": "0,1,1"}, init=None)
    pattern = rf"HOROVOD_TLS=1 is set for {words[0]} \(host .*\), and not for {words[1]} \(host .*\)"
    assert all(re.search(pattern, text) for text in done.results), done.results


def test_the_secret_is_not_sent_to_other_hosts_in_the_clear(monkeypatch):
    encryption.refuse_readable_secret(True, "MPI")
    monkeypatch.setenv("HOROVOD_TLS", "1")
    encryption.refuse_readable_secret(False, "MPI")
    with pytest.raises(BootstrapError, match="the job's secret would be sent to other hosts over MPI"):
        encryption.refuse_readable_secret(True, "MPI")


def test_the_ranks_of_a_custom_rendezvous_all_learn_that_the_secret_is_not_sent(monkeypatch):
    monkeypatch.setenv("HOROVOD_TLS", "1")
    said = []
    for rank in range(2):
        met = CustomRendezvous(rank, 2, said.append, lambda: said[0], "203.0.113.1")
        with pytest.raises(BootstrapError, match="would be sent to other hosts over the program's own store"):
            find_store(met, {}, None)
    assert len(said) == 1 and list(json.loads(said[0])) == ["refused"]
    here = CustomRendezvous(0, 2, said.append, None, "localhost")
    _, found = find_store(here, {}, None)
    found.close()
    assert "secret" in json.loads(said[1])


def without_the_library(ranks):
    if int(os.environ["HOROVOD_RANK"]) in ranks:
        os.environ["HOROVOD_TLS_LIBRARY"] = "/nonexistent/libcrypto.so"
    try:
        hvd.init()
        print("went on")
    except BootstrapError as error:
        print(error)


@pytest.mark.parametrize(("hosts", "fails"), [("0,1", True), ("0,0", False)])
def test_a_host_without_the_library_is_named_on_every_rank(hosts, fails):
    """A job on one host needs no library."""
    env = {"HOROVOD_TLS": "1", "HOROVOD_SIMULATED_HOSTS": hosts}
    output = run_to_the_end(2, without_the_library, (1,), env=env, init=None)
    assert output.count("went on") == (0 if fails else 2), output
    if fails:
        told = r"rank 1 \(host .*\): HOROVOD_TLS=1 needs .* HOROVOD_TLS_LIBRARY=/nonexistent/libcrypto\.so cannot be"
        assert len(re.findall(told, output)) == 2, output
