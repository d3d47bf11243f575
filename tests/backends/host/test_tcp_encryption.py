"""The tcp backend's encryption (HOROVOD_TLS=1): a program on the way reads nothing, and its changes are found."""

import socket
import struct
import threading

import numpy as np
import pytest

from abi_ctypes import ALLREDUCE, BROADCAST, COMM_DEAD, INTERNAL, INVALID, REMOTE
from table_driver import Backend, Comm, failure
from test_tcp_links import ADDRESSES, TABLE, loopback_of, read_when_there
from wire import Wire

pytestmark = pytest.mark.timeout(120)
PATTERN = b"a pattern that all ranks know. "


@pytest.fixture
def backend_name():
    return "tcp"


def many_sizes(comm):
    for count in (1, 5, 700, 16_384, 100_003, 1_000_000):
        for poll in (False, True):
            a = np.full(count, comm.rank + 1, np.float32)
            comm.run(ALLREDUCE, [a], [a], poll=poll)
            assert (a == comm.size * (comm.size + 1) / 2).all(), count
    # Messages of many small buffers, whose ends are not those of records.
    parts = [np.full(1 + i * 37 % 1000, comm.rank + i, np.int64) for i in range(200)]
    comm.run(BROADCAST, parts, parts, root=1)
    assert all((part == 1 + i).all() for i, part in enumerate(parts))
    comm.finalize()


@pytest.mark.parametrize(
    "options", [{}, {"sockets_per_peer": 3, "chunk_kib": 1024}, {"small_kib": 0}], ids=str
)
def test_encrypted_collectives(ranks, options):
    ranks(3, many_sizes, hosts=range(3), options=options, env={"HOROVOD_TLS": "1"})


def broadcast_the_pattern(comm):
    a = np.frombuffer(PATTERN * 20_000, np.uint8).copy()
    if comm.rank != 0:
        a[:] = 0
    comm.run(BROADCAST, [a], [a], root=0)
    assert a.tobytes() == PATTERN * 20_000


def put(path, data):
    """A rank that waits for the file must not find a part of it."""
    partial = path.with_name("partial")
    partial.write_bytes(data)
    partial.rename(path)


def over_a_wire(library, folder, body, hosts, spoil_at=None, end_at=None, options=None):
    """(result or error of ranks 0 and 1, the bytes between them). Each rank has a store of its
    own; the test hands the addresses over, and puts the wire in between."""
    results, backend = {}, Backend(library, folder, options)

    def work(rank):
        try:
            comm = Comm(backend, rank, 2, number=1 + rank, seconds=30, hosts=hosts)
            body(comm)
            comm.destroy()
            results[rank] = "fine"
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    put(folder / "1.tcp_addresses_1", read_when_there(folder / "2.tcp_addresses_1"))
    table = read_when_there(folder / "1.tcp_table")
    first = table[TABLE.size : TABLE.size + ADDRESSES.size]
    with Wire(loopback_of(first), spoil_at, end_at) as wire:
        _, encrypts, _, reason = ADDRESSES.unpack(first)
        endpoint = struct.pack("<BBH4s", 4, 1, wire.address[1], socket.inet_aton("127.0.0.1"))
        changed = ADDRESSES.pack(1, encrypts, endpoint, reason)
        put(folder / "2.tcp_table", table[: TABLE.size] + changed + table[TABLE.size + ADDRESSES.size :])
        for thread in threads:
            thread.join(60)
        return results, bytes(wire.seen)


@pytest.mark.parametrize(
    ("asked", "hosts", "readable"), [("1", (0, 1), False), ("1", (0, 0), True), ("0", (0, 1), True)]
)
def test_a_program_on_the_way_reads_nothing(library, tmp_path, monkeypatch, asked, hosts, readable):
    """Within a host nothing is encrypted."""
    monkeypatch.setenv("HOROVOD_TLS", asked)
    results, seen = over_a_wire(library, tmp_path, broadcast_the_pattern, hosts)
    assert results == {0: "fine", 1: "fine"}
    assert len(seen) > 20_000 * len(PATTERN)
    assert (PATTERN in seen) == readable
    assert (b"HTPM" in seen) == readable, "the headers of messages"


def reduce_until_it_fails(comm):
    a = np.ones(1_000_000, np.float32)
    while True:
        comm.run(ALLREDUCE, [a], [a])


# The handshake has 65 bytes on the way back; a record's length, its text, its tag.
@pytest.mark.parametrize("byte", [65 + 1, 65 + 4 + 1000, 65 + 4 + 65536 + 3, 65 + 200_000])
def test_a_byte_that_was_changed_ends_the_communicator(library, tmp_path, monkeypatch, byte):
    monkeypatch.setenv("HOROVOD_TLS", "1")
    results, _ = over_a_wire(library, tmp_path, reduce_until_it_fails, (0, 1), spoil_at=(1, byte))
    for rank, error in results.items():
        # Rank 1 has found it and tells so at once; the other rank hears of its end.
        assert error.code == (INTERNAL if rank == 1 else REMOTE) and error.flags & COMM_DEAD, results
        assert f"rank {1 - rank} (" in error.text, results
    assert "changed on the way: the encryption of HOROVOD_TLS=1 has detected it" in results[1].text


def test_the_end_of_one_of_two_connections_that_another_program_made_is_an_error(
    library, tmp_path, monkeypatch
):
    """The true end has a last record. Without that, rank 1 would wait for bytes of the other connection."""
    monkeypatch.setenv("HOROVOD_TLS", "1")
    options = {"sockets_per_peer": 2}
    results, _ = over_a_wire(
        library, tmp_path, reduce_until_it_fails, (0, 1), end_at=(1, 65), options=options
    )
    assert results[1].code == REMOTE and results[1].flags & COMM_DEAD, results
    assert "rank 0 (" in results[1].text and "it closed the connection" in results[1].text, results


def test_ranks_that_disagree_are_named_on_both(library, tmp_path, monkeypatch):
    results = {}

    def create(rank, store):
        comm = Comm(Backend(library, store), rank, 2, seconds=30, hosts=(0, 1))
        comm.destroy()

    # Each reads the variable before the other is started.
    monkeypatch.setenv("HOROVOD_TLS", "1")
    thread = threading.Thread(target=lambda: results.update({1: failure(create, 1, tmp_path)}), daemon=True)
    thread.start()
    read_when_there(tmp_path / "1.tcp_addresses_1")
    monkeypatch.setenv("HOROVOD_TLS", "0")
    results[0] = failure(create, 0, tmp_path)
    thread.join(30)
    for rank, code in ((0, INVALID), (1, REMOTE)):
        assert results[rank].code == code, results
        assert "HOROVOD_TLS=1 is set for rank 1, and not for rank 0" in results[rank].text
