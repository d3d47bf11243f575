"""How the tcp backend's ranks find each other: interfaces, unproven connections, descriptors, foreign bytes."""

import gc
import hashlib
import hmac
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from abi_ctypes import ALLREDUCE, BARRIER, INVALID, REMOTE, TIMEOUT
from reference import digest, sample
from table_driver import Backend, Comm, failure

pytestmark = pytest.mark.timeout(120)
ADDRESSES = struct.Struct("<II160s240s")
TABLE = struct.Struct("<QII32sIIII512s")
HEADER = struct.Struct("<IIIIQQQQQ5Q")


@pytest.fixture
def backend_name():
    return "tcp"


def endpoints(addresses):
    """[(host, port)] of a rank's addresses in the store."""
    count, _, raw, _ = ADDRESSES.unpack(addresses)
    found = []
    for i in range(count):
        family, _, port, address = struct.unpack_from("<BBH16s", raw, 20 * i)
        text = socket.inet_ntop(
            *((socket.AF_INET, address[:4]) if family == 4 else (socket.AF_INET6, address))
        )
        found.append((text, port))
    return found


def loopback_of(addresses):
    return next(e for e in endpoints(addresses) if e[0] == "127.0.0.1")


def read_when_there(path, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            time.sleep(0.002)
    raise AssertionError(f"{path} does not appear")


def sum_ranks(comm, count=1000):
    a = np.full(count, comm.rank + 1, np.float32)
    comm.run(ALLREDUCE, [a], [a])
    assert (a == comm.size * (comm.size + 1) / 2).all()


def in_thread(results, backend, rank, size, body):
    def work():
        try:
            comm = Comm(backend, rank, size, seconds=30)
            body(comm)
            comm.destroy()
            results[rank] = "fine"
        except BaseException as error:
            results[rank] = error

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_unproven_connections_on_the_port(library, tmp_path):
    """They may connect, be silent, talk nonsense, lie about who they are: ranks come together all the same."""
    backend = Backend(library, tmp_path)
    results = {}
    threads = [in_thread(results, backend, 1, 3, sum_ranks)]
    at = loopback_of(read_when_there(tmp_path / "1.tcp_addresses_1"))
    unproven = []
    opening = b"HVDTCP02" + struct.pack("<IIII", 2, 1, 0, 3) + b"n" * 32
    for first_words in [b""] * 70 + [
        b"GET / HTTP/1.1\r\n\r\n" * 2000,
        opening[:30],
        opening,
        b"\0" * 100_000,
    ]:
        s = socket.create_connection(at, timeout=10)
        unproven.append(s)
        try:
            s.sendall(first_words)
        except OSError:
            pass
    gone = socket.create_connection(at, timeout=10)
    gone.close()
    liar = unproven[72]
    threads += [in_thread(results, backend, rank, 3, sum_ranks) for rank in (0, 2)]
    # The one that claims to be rank 2 is asked for a proof, and dropped for a wrong one.
    liar.settimeout(10)
    answer = b""
    while len(answer) < 64 and (got := liar.recv(64 - len(answer))):
        answer += got
    if len(answer) == 64:
        liar.sendall(b"p" * 32)
        try:
            assert liar.recv(1) == b""
        except ConnectionResetError:
            pass
    for t in threads:
        t.join(40)
    assert results == {0: "fine", 1: "fine", 2: "fine"}
    for s in unproven:
        s.close()


def test_connections_without_end(library, tmp_path):
    """A program that connects to a rank as often as it can does not keep the rank from making its own connections."""
    backend = Backend(library, tmp_path)
    results = {}
    threads = [in_thread(results, backend, 1, 3, sum_ranks)]
    at = loopback_of(read_when_there(tmp_path / "1.tcp_addresses_1"))
    words = [sys.executable, str(Path(__file__).with_name("connect_without_end.py")), *map(str, at)]
    crowd = [subprocess.Popen(words, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for program in crowd:
            assert program.stdout.readline() == b"begins\n"
        threads += [in_thread(results, backend, rank, 3, sum_ranks) for rank in (0, 2)]
        for t in threads:
            t.join(40)
        assert results == {0: "fine", 1: "fine", 2: "fine"}
    finally:
        for program in crowd:
            program.kill()
            program.communicate()


def proven_connection(at, secret, caller, host, size):
    """A connection to the rank `host` that has proved to be the rank `caller`, and is welcome."""
    s, proof = connection_and_proof(at, secret, caller, host, size)
    s.sendall(proof)
    assert s.recv(1) == b"\1"
    return s


def connection_and_proof(at, secret, caller, host, size):
    s = socket.create_connection(at, timeout=10)
    who, mine = struct.pack("<IIII", caller, host, 0, size), os.urandom(32)
    s.sendall(b"HVDTCP02" + who + mine)
    answer = s.recv(64, socket.MSG_WAITALL)
    said = mine + answer[:32] + b"\0" + who
    assert answer[32:] == proof_of(b"host", secret, said), "the host proves itself too"
    return s, proof_of(b"caller", secret, said)


def proof_of(side, secret, said):
    return hmac.new(secret, side + b"\0tcp\0" + said, hashlib.sha256).digest()


def reducing_rank_0(library, folder, size, number=1):
    """Rank 0 in an allreduce, on a thread; the test makes up the others: (thread, {"error": how the allreduce has
    failed}, address of rank 0, secret). `number`: of the communicator."""
    backend = Backend(library, folder)
    for peer in range(1, size):
        (folder / f"{number}.tcp_addresses_{peer}").write_bytes(ADDRESSES.pack(1, 0, b"\x04", b""))
    told_to = {}

    def reduce():
        comm = Comm(backend, 0, size, number=number)
        told_to["error"] = failure(comm.run, ALLREDUCE, [np.ones(4, np.float32)], [np.ones(4, np.float32)])
        comm.destroy()

    thread = threading.Thread(target=reduce, daemon=True)
    thread.start()
    table = read_when_there(folder / f"{number}.tcp_table")
    at, secret = loopback_of(table[TABLE.size :][: ADDRESSES.size]), TABLE.unpack_from(table)[3]
    return thread, told_to, at, secret


def test_a_peer_that_connects_once_more(library, tmp_path):
    """A peer that gives a connection up, and does not know that it was welcome, makes another: this one counts."""
    thread, told_to, at, secret = reducing_rank_0(library, tmp_path, size=3)
    earlier = proven_connection(at, secret, caller=2, host=0, size=3)
    later = proven_connection(at, secret, caller=2, host=0, size=3)
    assert earlier.recv(1) == b"", "rank 0 keeps the connection that rank 2 has given up"
    other = proven_connection(at, secret, caller=1, host=0, size=3)
    later.sendall(b"\xde\xad\xbe\xef" * 64)
    thread.join(40)
    assert "out of step" in told_to["error"].text and "rank 2 (" in told_to["error"].text, told_to["error"]
    for s in (earlier, later, other):
        s.close()


def test_a_connection_that_was_given_up_before_the_welcome_does_not_count(library, tmp_path):
    thread, told_to, at, secret = reducing_rank_0(library, tmp_path, size=2)
    earlier, proof = connection_and_proof(at, secret, caller=1, host=0, size=2)
    # The proof and the end of the connection go in one segment.
    earlier.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    earlier.sendall(proof)
    earlier.shutdown(socket.SHUT_WR)
    assert earlier.recv(1) == b""
    with proven_connection(at, secret, caller=1, host=0, size=2) as later:
        later.sendall(b"\xde\xad\xbe\xef" * 64)
        thread.join(40)
    assert "out of step" in told_to["error"].text, told_to["error"]
    earlier.close()


def answer_caller(s, secret):
    """The host's part up to the caller's proof, which is right."""
    said = s.recv(56, socket.MSG_WAITALL)[8:] + (nonce := os.urandom(32))
    s.sendall(nonce + proof_of(b"host", secret, said))
    assert s.recv(32, socket.MSG_WAITALL) == proof_of(b"caller", secret, said)


@pytest.mark.slow  # it waits longer than a connection may take to prove its rank
def test_a_welcome_that_comes_late_counts(library, tmp_path):
    """A host that has got the proof may count the connection and listen no more, so its caller has no second try."""
    backend = Backend(library, tmp_path)
    told_to = {}

    def reduce():
        try:
            comm = Comm(backend, 1, 2, seconds=20)
        except BaseException as error:
            told_to["error"] = error
            return
        told_to["error"] = failure(comm.run, ALLREDUCE, [np.ones(4, np.float32)], [np.ones(4, np.float32)])
        comm.destroy()

    with socket.create_server(("127.0.0.1", 0)) as host:
        at = struct.pack("<BBH4s", 4, 1, host.getsockname()[1], b"\x7f\0\0\1")
        head = TABLE.pack(0x3130307063744856, 2, 1, b"s" * 32, 1, 256, 64, 16, b"")
        (tmp_path / "1.tcp_table").write_bytes(head + ADDRESSES.pack(1, 0, at, b"") * 2)
        thread = threading.Thread(target=reduce, daemon=True)
        thread.start()
        s, _ = host.accept()
    answer_caller(s, b"s" * 32)
    time.sleep(11)
    s.sendall(b"\1" + b"\xde\xad\xbe\xef" * 64)
    thread.join(40)
    assert "out of step" in told_to["error"].text, told_to["error"]
    s.close()


def test_a_rank_that_is_only_one_of_the_machine_is_not_believed(library, tmp_path):
    """Knows the table, hence the secret, and behaves up to the first message, which is garbage."""
    for number, garbage, told in [
        (1, b"\xde\xad\xbe\xef" * 64, "out of step"),
        (2, HEADER.pack(0x4D505448, 1, 0, 0, 7, 0, 0, 4, 4, 0, 0, 0, 0, 0) + b"1234", "operation 7"),
        (3, HEADER.pack(0x4D505448, 1, 0, 0, 1, 12, 0, 4, 4, 0, 1, 0, 0, 0) + b"1234", "disagree"),
        # A reason for giving up that is longer than any: it must not be copied.
        (4, HEADER.pack(0x4D505448, 0xFA4E, 0, 0, 0, 0, 0, 8000, 0, *[0] * 5) + b"x" * 8000, "out of step"),
        (
            5,
            HEADER.pack(0x4D505448, 0xFA4E, 0, 0, 0, 0, 0, 2**64 - 1, 0, *[0] * 5) + b"x" * 8000,
            "out of step",
        ),
        (6, HEADER.pack(0x4D505448, 0xFA4E, 0, 0, 0, 0, 0, 700, 0, *[0] * 5) + b"y" * 700, "gave up: yyy"),
    ]:
        thread, told_to, at, secret = reducing_rank_0(library, tmp_path, size=2, number=number)
        s = proven_connection(at, secret, caller=1, host=0, size=2)
        s.sendall(garbage)
        thread.join(40)
        error = told_to["error"]
        assert error.code in (REMOTE, INVALID) and told in error.text and "rank 1 (" in error.text, str(error)
        s.close()


def wrong_interface(comm, culprit):
    if comm.rank == culprit:
        comm.backend.options["iface"] = "eth77, 10.99.0.0/30"
    error = failure(Comm, comm.backend, comm.rank, comm.size, number=2)
    assert "eth77" in error.text, "the other ranks are told too, and at once"
    assert error.code == (INVALID if comm.rank == culprit else REMOTE)
    return error.text


@pytest.mark.parametrize("culprit", [0, 1])
def test_wrong_interface_lists_those_there_are(ranks, culprit):
    text = ranks(3, wrong_interface, culprit, timeout=15)[culprit]
    assert "lo (127.0.0.1)" in text and "matches no network interface" in text


@pytest.mark.parametrize("variable", [None, "HOROVOD_GLOO_IFACE"])
@pytest.mark.parametrize("iface", ["lo", "127.0.0.0/8", "nonesuch,127.0.0.1"])
def test_named_interface_is_the_only_one_bound(library, tmp_path, iface, variable, monkeypatch):
    if variable:
        monkeypatch.setenv(variable, iface)
    backend = Backend(library, tmp_path, {} if variable else {"iface": iface})
    results = {}
    threads = [in_thread(results, backend, 1, 2, sum_ranks)]
    found = endpoints(read_when_there(tmp_path / "1.tcp_addresses_1"))
    assert found and all(host in ("127.0.0.1", "::1") for host, _ in found)
    listening = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        listening += [line.split() for line in Path(table).read_text().splitlines()[1:]]
    ports = {port for _, port in found}
    bound = {
        row[1].split(":")[0] for row in listening if row[3] == "0A" and int(row[1].split(":")[1], 16) in ports
    }
    assert bound and bound <= {"0100007F", "00000000000000000000000001000000"}
    threads.append(in_thread(results, backend, 0, 2, sum_ranks))
    for t in threads:
        t.join(30)
    assert results == {0: "fine", 1: "fine"}


def recreate(comm):
    gc.collect()  # what earlier tests have left would be closed in between
    descriptors, keys = len(os.listdir("/proc/self/fd")), set(os.listdir(comm.backend.store))
    for number in range(100, 150):
        again = Comm(comm.backend, comm.rank, comm.size, number=number)
        sum_ranks(again, 5)
        again.destroy()
    assert len(os.listdir("/proc/self/fd")) == descriptors
    comm.run(BARRIER)  # rank 0 deletes the last table only when all are connected
    left = set(os.listdir(comm.backend.store)) - keys
    assert not left, f"keys of the rendezvous are deleted after use: {left}"


def test_fifty_times_without_a_leak(ranks):
    ranks(3, recreate, alone=True)


def children_inherit_nothing(comm):
    # With its standard streams elsewhere, or those of the test itself would count.
    listing = ["sh", "-c", "ls -l /proc/self/fd"]
    done = subprocess.run(
        listing, stdin=subprocess.DEVNULL, capture_output=True, text=True, close_fds=False, timeout=20
    )
    return done.stdout


def test_no_descriptor_is_inherited_by_programs(ranks):
    for text in ranks(2, children_inherit_nothing, alone=True):
        assert "eventpoll" not in text and "eventfd" not in text and "socket:" not in text, text


def test_create_says_whom_it_could_not_reach(library, tmp_path):
    """Rank 0's table names a port where rank 0 does not listen."""
    backend = Backend(library, tmp_path)
    dead = socket.socket()
    dead.bind(("127.0.0.1", 0))
    port = dead.getsockname()[1]
    dead.close()
    addresses = ADDRESSES.pack(1, 0, struct.pack("<BBH4s", 4, 1, port, b"\x7f\0\0\1"), b"")
    head = TABLE.pack(0x3130307063744856, 2, 1, b"s" * 32, 1, 256, 64, 16, b"")
    (tmp_path / "1.tcp_table").write_bytes(head + addresses * 2)
    started = time.monotonic()
    error = failure(Comm, backend, 1, 2, seconds=1)
    assert error.code == TIMEOUT and time.monotonic() - started < 20
    assert f"127.0.0.1:{port}: Connection refused" in error.text, error.text


def tcp_digest(comm, dtype, op, factors):
    out = []
    for count in (5, 700, 100_003):
        mine = sample(dtype, comm.rank, count)
        comm.run(ALLREDUCE, [mine], [mine], op=op, **factors)
        out.append(digest(mine))
    return out


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32"])
def test_same_bits_as_shm(library, tmp_path, dtype, size):
    from libraries import find_library
    from ranks import in_living_processes

    for op, factors in ((0, {}), (1, {}), (4, {"pre": 0.3, "post": 1.7})):
        results = []
        for name in ("shm", "tcp"):
            folder = tmp_path / f"{name}-{op}"
            folder.mkdir()
            results.append(
                in_living_processes(find_library(name), folder, size, tcp_digest, dtype, op, factors)
            )
        assert all(r == results[0][0] for r in results[0] + results[1]), (op, factors)
