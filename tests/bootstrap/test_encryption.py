"""HOROVOD_TLS: the store's connections, ranks that do not agree, hosts without the library."""

import os
import re

import pytest
from wire import Wire

import hvd_core as hvd
from harness import run_on_ranks
from harness.launch import run_to_the_end
from hvd_core.bootstrap import BootstrapError, StoreClient, StoreServer, connect, encryption
from hvd_core.bootstrap.socket_io import StoreLost, join_address, split_address

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
    encryption.refuse_readable_secret(["a", "b"], "MPI")
    monkeypatch.setenv("HOROVOD_TLS", "1")
    encryption.refuse_readable_secret(["a", "a"], "MPI")
    with pytest.raises(BootstrapError, match="the job's secret would be sent to other hosts over MPI"):
        encryption.refuse_readable_secret(["a", "b"], "MPI")


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
