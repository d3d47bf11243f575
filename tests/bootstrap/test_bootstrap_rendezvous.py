"""The meeting point on one host, with real sockets: who is let in, and what the others are told."""

import os
import secrets
import socket
import subprocess
import threading

import pytest

from hvd_core.bootstrap import BootstrapError, BootstrapTimeout, mpi_rendezvous
from hvd_core.bootstrap.identity import Identity
from hvd_core.bootstrap.rendezvous import _ask_rank_zero, _Desk
from hvd_core.bootstrap.wire import Deadline

SECRET = bytes(range(32))
STORE = "tcp://127.0.0.1:1234"
NOBODY = 65534


@pytest.fixture
def point():
    return "\0hvd-test-" + secrets.token_hex(8)


@pytest.fixture
def desk(point):
    desk = _Desk(point, 3, STORE, SECRET)
    yield desk
    desk.close()


def ask(point, rank=1, size=3, seconds=5):
    return _ask_rank_zero(point, Identity(rank, size), Deadline(seconds))


def as_nobody(script, *arguments):
    """A Python process of another user that runs ``script``; the test is skipped where that is impossible."""
    if os.geteuid() != 0:
        pytest.skip("only root can start a process of another user")
    # -I and -S: the other user may not be able to read this environment.
    return subprocess.Popen(
        ["/usr/bin/env", "python3", "-I", "-S", "-c", script, *arguments],
        user=NOBODY,
        group=NOBODY,
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_each_rank_is_told_where_the_store_is(point, desk):
    assert ask(point, 1) == (STORE, SECRET)
    assert ask(point, 2) == (STORE, SECRET)


def test_rank_zero_may_come_late(point):
    opened = []
    timer = threading.Timer(0.3, lambda: opened.append(_Desk(point, 3, STORE, SECRET)))
    timer.start()
    assert ask(point) == (STORE, SECRET)
    timer.join()
    opened[0].close()


def test_rank_zero_that_never_comes_is_named(point):
    with pytest.raises(BootstrapTimeout, match=r"rank 0 has not shown up on this host within 0\.3 s"):
        ask(point, seconds=0.3)


def test_a_job_of_another_size_is_turned_away(point, desk):
    with pytest.raises(BootstrapError, match="says it is rank 1 of 4, but rank 0 belongs to a job of 3"):
        ask(point, 1, 4)


def test_rank_zero_cannot_be_there_twice(point, desk):
    with pytest.raises(BootstrapError, match="was rank 0 started twice"):
        _Desk(point, 3, STORE, SECRET)


def test_a_second_process_with_the_same_rank_is_turned_away(point, desk):
    assert ask(point, 1) == (STORE, SECRET)
    child = os.fork()
    if child == 0:
        try:
            ask(point, 1)
        except BootstrapError as error:
            os._exit(7 if "rank 1 is already taken by process" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_garbage_at_the_meeting_point_is_ignored(point, desk):
    for greeting in (b"", b"x" * 16, os.urandom(64)):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(point)
            sock.sendall(greeting)
    assert ask(point) == (STORE, SECRET)


def test_another_user_learns_nothing(point, desk):
    script = """if True:
        import socket, struct, sys
        sock = socket.socket(socket.AF_UNIX)
        sock.connect("\\0" + sys.argv[1])
        try:
            sock.sendall(struct.pack("<8sII", b"hvdmeet1", 1, 3))
            print(len(sock.recv(1000)))
        except OSError:
            print(0)
    """
    thief = as_nobody(script, point[1:])
    out, err = thief.communicate(timeout=20)
    assert out.strip() == "0", (out, err)
    assert ask(point) == (STORE, SECRET)


def test_another_user_at_the_meeting_point_gets_nothing(point):
    script = """if True:
        import socket, sys
        sock = socket.socket(socket.AF_UNIX)
        sock.bind("\\0" + sys.argv[1])
        sock.listen()
        print("ready", flush=True)
        print(len(sock.accept()[0].recv(1000)))
    """
    squatter = as_nobody(script, point[1:])
    assert squatter.stdout.readline().strip() == "ready", squatter.stderr.read()
    with pytest.raises(BootstrapError, match=f"a process of user {NOBODY} holds this job"):
        ask(point)
    assert squatter.communicate(timeout=20)[0].strip() == "0"


def test_store_address_over_mpi_is_on_the_interface_towards_the_other_hosts():
    own = socket.gethostname()
    assert mpi_rendezvous._address_towards([own, own]) == "127.0.0.1"
    assert mpi_rendezvous._address_towards([own, "localhost"]) in ("127.0.0.1", "::1")
    with pytest.raises(BootstrapError, match=r"rank 0 cannot reach host 'no-such-host\.invalid'"):
        mpi_rendezvous._address_towards([own, "no-such-host.invalid"])
