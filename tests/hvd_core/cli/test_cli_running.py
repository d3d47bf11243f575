"""`hvd doctor --pid` and `hvd doctor --job` on living ranks (asked_programs.py)."""

import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

import asked_programs as programs
from harness import run_on_ranks
from hvd_core._cli import doctor
from hvd_core._runtime.doctor_endpoint import prefix_of


def test_says_who_waits_for_which_rank_and_where():
    done = run_on_ranks(2, programs.one_rank_waits)
    assert done.results[1] == [1.0, 1.0, 1.0]
    (job_code, job, _), (pid_code, one, _) = done.results[0]
    assert (job_code, pid_code) == (0, 0)
    assert "2 ranks on 1 host" in job
    assert "allreduce.loss" in job and "asked_programs.py" in job
    # The report says which rank is missing; the rank's own lines say what it does instead.
    assert "rank 0 (host " in job and "rank 1 (host " in job
    assert "in until" in job or "subprocess" in job
    assert "rank 1 of 2" in one and "waits for 'allreduce.loss' since " in one
    assert 'in one_rank_waits: return hvd.allreduce(np.ones(3), name="loss")' in one
    assert "backends: shm within a host" in one
    assert "main thread, in an operation" in one


@pytest.mark.skipif(
    sys.version_info[:2] not in ((3, 11), (3, 12)), reason="other Pythons do not export what reads the stacks"
)
def test_answers_while_c_code_keeps_pythons_lock():
    found = run_on_ranks(2, programs.holds_pythons_lock).results[0]
    assert found["note"] == "code that keeps the GIL runs: the stacks cannot be read"
    assert [s["name"] for s in found["last"]] == ["allreduce.before"]
    assert not found["is_stuck"]


def test_shows_all_threads():
    found = run_on_ranks(2, programs.several_threads).results[0]
    main, *others = found["threads"]
    assert main["is_main"] and "several_threads" in main["frames"][main["site"]]["place"]
    assert any(t["in_engine"] and "in_an_operation" in t["frames"][t["site"]]["place"] for t in others)


def test_job_goes_on_while_it_is_asked():
    run_on_ranks(2, programs.ask_and_proceed)


def test_rank_0_asks_the_others_over_the_tree():
    ranks, sets = run_on_ranks(3, programs.all_over_the_tree).results[0]
    assert ranks == [0, 1, 2]
    assert sets == {0: [0, 1, 2]}


def test_socket_ends_with_the_job():
    assert run_on_ranks(1, programs.own_socket).results == [(1, 0)]


def test_doctor_0_makes_no_socket():
    assert run_on_ranks(1, programs.own_socket, env={"HOROVOD_DOCTOR": "0"}).results == [(0, 0)]


@pytest.mark.ranks(2)
def test_forked_child_does_not_hold_the_socket():
    programs.in_a_forked_child()


@pytest.mark.ranks(1)
def test_fork_beside_an_ended_engine():
    programs.fork_beside_an_ended_engine()


@pytest.fixture
def impostor():
    """A socket with a name like those of jobs, served by this process: it accepts, and sends what `reply` says."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    name = f"{prefix_of(os.geteuid())}{os.urandom(8).hex()}"
    listener.bind("\0" + name)
    listener.listen(4)

    def serve(reply):
        def answer():
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.recv(100)
                connection.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        return name, thread

    yield serve
    listener.close()


@pytest.mark.parametrize("reply", [b"", b"{", b"{}\n", b'{"job": 1}\nPART x', b"\xff\xfe\n" * 10])
def test_damaged_answers_are_no_answers(impostor, reply):
    name, thread = impostor(reply)
    assert doctor.ask(name, "state") is None
    thread.join()


def test_processes_of_other_users_are_not_asked(impostor, monkeypatch):
    name, thread = impostor(b"secret")
    monkeypatch.setattr(doctor.os, "geteuid", lambda: 12345)
    assert doctor.ask(name, "state") is None
    assert doctor.pid_at(name) is None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as last:  # ends the impostor's thread
        last.connect("\0" + name)
    thread.join()


def hvd_doctor(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "hvd_core._cli", "doctor", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_says_why_a_process_cannot_be_asked():
    done = hvd_doctor("--pid", str(os.getpid()))
    assert (
        done.returncode == 2 and f"process {os.getpid()} cannot be asked: it serves no socket" in done.stderr
    )
    gone = subprocess.Popen(["true"])
    gone.wait()
    done = hvd_doctor("--pid", str(gone.pid))
    assert done.returncode == 2 and f"there is no process {gone.pid}" in done.stderr


def test_options_exclude_each_other():
    done = hvd_doctor("--pid", "1", "--job")
    assert done.returncode == 2 and "--pid goes with no other question" in done.stderr
    done = hvd_doctor("shm", "--pid", "1")
    assert done.returncode == 2 and "--pid does not go with the name of a backend" in done.stderr
