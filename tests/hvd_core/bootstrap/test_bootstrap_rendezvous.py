"""The rendezvous address on one host, with real sockets: which ranks get the store's address, and the other ranks'
errors."""

import os
import secrets
import socket
import subprocess
from pathlib import Path

import pytest

import other_user_programs
from hvd_core._base import sockets
from hvd_core._base.sockets import BootstrapError, Deadline
from hvd_core._bootstrap.launchers.identity import Identity
from hvd_core._bootstrap.launchers.process import launcher_pid, private_facts
from hvd_core._bootstrap.rendezvous import unix_socket
from hvd_core._bootstrap.rendezvous.unix_socket import RendezvousListener
from hvd_core._bootstrap.store.job_members import MembersDisagree, select

SECRET = bytes(range(32))
STORE = "tcp://127.0.0.1:1234"
NOBODY = 65534


@pytest.fixture
def point():
    return "\0hvd-test-" + secrets.token_hex(8)


def part(rank, members, size=4):
    """The identity of the launcher's ``rank`` in a job of ``members``."""
    return select(Identity(rank, size), members)


@pytest.fixture
def open_listener(point):
    listeners = []

    def open_one(identity=Identity(0, 3), offer=(STORE, SECRET)):
        listeners.append(RendezvousListener(point, identity, offer))
        return listeners[-1]

    yield open_one
    for listener in listeners:
        listener.close()


def ask(point, identity=Identity(1, 3), seconds=5):
    return unix_socket.ask(point, identity, Deadline(seconds))


def as_nobody(program, *arguments):
    """A Python process of another user that runs a function of other_user_programs.py; the test is skipped where that
    is impossible."""
    if os.geteuid() != 0:
        pytest.skip("only root can start a process of another user")
    text = Path(other_user_programs.__file__).read_text()
    # -I and -S: the other user may not be able to read this environment.
    return subprocess.Popen(
        ["/usr/bin/env", "python3", "-I", "-S", "-c", text, program.__name__, *arguments],
        user=NOBODY,
        group=NOBODY,
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_each_rank_is_told_where_the_store_is(point, open_listener):
    open_listener()
    for rank in (1, 2):
        answer = ask(point, Identity(rank, 3))
        assert (answer["store"], answer["secret"]) == (STORE, SECRET.hex())


def test_nobody_there_is_no_answer(point):
    assert ask(point) is None


def test_a_job_of_another_size_is_turned_away(point, open_listener):
    open_listener()
    assert "says it is rank 1 of 4, but rank 0 belongs to a job of 3" in ask(point, Identity(1, 4))["error"]


def test_a_rank_cannot_be_there_twice(point, open_listener):
    open_listener()
    with pytest.raises(BootstrapError, match=r"rendezvous address of rank 0 .*: was rank 0 started twice"):
        open_listener()


def test_a_second_process_with_the_same_rank_is_turned_away(point, open_listener):
    open_listener()
    assert ask(point)["store"] == STORE
    child = os.fork()
    if child == 0:
        error = ask(point).get("error", "")
        os._exit(7 if "rank 1 is already taken by process" in error else 8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_only_those_who_wait_for_the_same_ranks_are_told_where_the_store_is(point, open_listener):
    listener = open_listener(part(0, [0, 1]))
    assert ask(point, part(1, [0, 1])) == {"members": (0, 1), "store": STORE, "secret": SECRET.hex()}
    # These do not wait for each other: one of the two may yet come.
    assert ask(point, part(2, [2, 0])) == {"members": (0, 1)} and listener.failure is None


def test_a_list_that_contradicts_is_told_on_either_side(point, open_listener):
    listener = open_listener(part(0, [0, 1]))
    early = Deadline(60)
    assert ask(point, part(1, [1, 0])) == {"members": (0, 1)}
    assert isinstance(listener.failure, MembersDisagree)
    assert "rank 0: [0, 1]; rank 1: [1, 0]" in str(listener.failure)
    # A rank with the same list learns it from the store; one that has entered init() later gets no answer.
    assert unix_socket.ask(point, part(1, [0, 1]), early)["store"] == STORE
    assert unix_socket.ask(point, part(1, [1, 0]), early) is None
    assert ask(point, part(1, [0, 1])) is None
    assert ask(point, part(1, None)) is None


def test_garbage_at_the_rendezvous_address_is_ignored(point, open_listener):
    open_listener()
    for greeting in (b"", b"x" * 16, b"x" * 32, os.urandom(64), b"[1, 2]\n", b"7\n"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(point)
            sock.sendall(greeting)
    assert ask(point)["store"] == STORE


def test_another_user_learns_nothing(point, open_listener):
    open_listener()
    thief = as_nobody(other_user_programs.ask, point[1:])
    out, err = thief.communicate(timeout=60)
    assert out.strip() == "0", (out, err)
    assert ask(point)["store"] == STORE


def test_another_user_at_the_rendezvous_address_gets_nothing(point):
    squatter = as_nobody(other_user_programs.listen_and_receive, point[1:])
    assert squatter.stdout.readline().strip() == "ready", squatter.stderr.read()
    with pytest.raises(BootstrapError, match=f"process {squatter.pid} of user {NOBODY} listens there"):
        ask(point)
    assert squatter.communicate(timeout=60)[0].strip() == "0"


def test_no_other_user_can_know_an_address_before_it_is_taken(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    whole = Identity(0, 2, launcher="torchrun", variable="RANK")
    named = unix_socket.addresses(whole)
    assert named(0) == unix_socket.addresses(whole)(0)
    launcher, _ = launcher_pid("RANK")
    assert len(private_facts("RANK")) == 64
    thief = as_nobody(other_user_programs.read_random_bytes_of, str(launcher))
    _, err = thief.communicate(timeout=60)
    assert "PermissionError" in err, err


def test_store_address_over_mpi_is_on_the_interface_towards_the_other_hosts():
    own = socket.gethostname()
    assert sockets.address_towards([own, own]) == "127.0.0.1"
    assert sockets.address_towards([own, "localhost"]) in ("127.0.0.1", "::1")
    with pytest.raises(BootstrapError, match=r"rank 0 cannot reach host 'no-such-host\.invalid'"):
        sockets.address_towards([own, "no-such-host.invalid"])
