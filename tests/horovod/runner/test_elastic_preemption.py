"""Ranks of elastic jobs that get SIGTERM some time before they must end, and hosts that are announced for removal."""

import os
import signal
import socket
import subprocess
import sys

import pytest

import elastic_ranks
from hvd_core._bootstrap import driver_channel
from hvd_core._bootstrap.driver_channel import DESCRIPTOR, GRACE, DriverChannel, LeftJob
from launchers import parent_with, program_words

pytest.importorskip("hvd_core._core", reason="the engine is not built")

SHELL = ("--network-interfaces", "lo", "--remote-shell", "sh -c 'exec {command}' {host}")


def write(launcher, name, text=""):
    """Writes a file as a whole: the job reads it at any moment."""
    (launcher.folder / f"{name}.new").write_text(text)
    (launcher.folder / f"{name}.new").rename(launcher.folder / name)


def finish(process, code=0):
    out, err = (data.decode() for data in process.communicate(timeout=200))
    assert process.returncode == code, err
    return out, err


def test_a_rank_that_gets_sigterm_leaves_at_its_next_commit_and_no_step_is_lost(launcher):
    words = ("-np", 2, "--min-np", 1, "--preemption-grace", 300)
    process = launcher.start(*words, *program_words(elastic_ranks.count_executed_steps))
    (told,) = launcher.wait_for(1, "in.2.rank1")
    os.kill(int(told), signal.SIGTERM)
    launcher.wait_for(1, "in.1.rank0")
    write(launcher, "enough")
    out, err = finish(process)
    assert out == "[0]<stdout>:all executed steps count\n"
    assert "process 1 has got SIGTERM: it leaves at its next commit, or is killed after 300 s" in err
    assert "has ended" not in err
    assert launcher.wait_for_none() == []


@pytest.mark.parametrize(
    "helper", ["supervisor.py", pytest.param("horovod._runner.agent", marks=pytest.mark.slow)]
)
def test_sigterm_to_a_helper_of_a_rank_is_passed_on(launcher, helper):
    """The rank of the host "elsewhere" has both: its agent, and the agent's supervisor. The ranks are interpreters: a
    fork is no descendant of its launcher."""
    words = ("-np", 2, "--min-np", 1, "-H", "localhost:1,elsewhere:1", *SHELL, "--preemption-grace", 300)
    process = launcher.start(*words, *program_words(elastic_ranks.count_executed_steps))
    (told,) = launcher.wait_for(1, "in.2.rank1")
    os.kill(parent_with(helper, int(told)), signal.SIGTERM)
    launcher.wait_for(1, "in.1.rank0")
    write(launcher, "enough")
    out, err = finish(process)
    assert out == "[0]<stdout>:all executed steps count\n"
    assert "process 1 on elsewhere has got SIGTERM" in err and "has ended" not in err


def test_a_rank_that_does_not_leave_in_time_is_killed(launcher):
    """The ranks never commit. Rank 0 goes on alone when rank 1 has been killed."""
    words = ("--min-np", 1, "--preemption-grace", 1)
    process = launcher.start_python(2, elastic_ranks.loses_uncommitted_steps, *words)
    (told,) = launcher.wait_for(1, "committed.rank1")
    launcher.wait_for(1, "committed.rank0")
    os.kill(int(told), signal.SIGTERM)
    out, err = finish(process)
    assert {line.partition(":")[2] for line in out.splitlines()} == {"goes on from 7"}
    assert "process 1 has ended (killed by SIG" in err


def test_a_host_is_left_when_its_replacement_is_ready(launcher):
    write(launcher, "hosts", "localhost:1\nelsewhere:1\n")
    words = ("--min-np", 1, "--host-discovery-script", "cat hosts", *SHELL, "--preemption-grace", 600)
    process = launcher.start_python(2, elastic_ranks.count_executed_steps, *words)
    (going,) = launcher.wait_for(1, "in.2.rank1")
    launcher.wait_for(1, "in.2.rank0")
    for file in launcher.folder.glob("in.2.*"):
        file.unlink()
    write(launcher, "hosts", "localhost:2\n")
    assert going not in launcher.wait_for(2, "in.2.rank")
    write(launcher, "enough")
    out, err = finish(process)
    assert "[0]<stdout>:all executed steps count\n" in out
    assert "world 2: 2 ranks on localhost (2)" in err and "world 3" not in err


@pytest.mark.parametrize("end", [False, True])
def test_sigterm_is_an_announcement_unless_the_driver_ends_the_process(end):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(120)
        env = {**os.environ, DESCRIPTOR: str(theirs.fileno()), GRACE: "5"}
        process = subprocess.Popen(
            program_words(elastic_ranks.waits_for_a_place), env=env, pass_fds=[theirs.fileno()]
        )
        theirs.close()
        lines = ours.makefile()
        assert '"ready"' in lines.readline()
        if end:
            os.kill(process.pid, signal.SIGSTOP)  # so that it reads the message after the signal
            ours.sendall(b'{"kind": "end"}\n')
        process.terminate()
        os.kill(process.pid, signal.SIGCONT)
        if end:
            assert process.wait(120) == -signal.SIGTERM
        else:
            assert '"announced"' in lines.readline()
            ours.sendall(b'{"kind": "leave"}\n')
            assert process.wait(120) == 0
        lines.close()


def test_the_end_is_known_at_every_moment_of_reading():
    """SIGTERM may come between any two lines of the channel's code. A trace function asks there what its handler asks."""
    ours, theirs = socket.socketpair()
    channel = DriverChannel(theirs.detach())
    answers = []

    def trace(frame, event, _argument):
        if frame.f_code.co_filename != driver_channel.__file__ or frame.f_code.co_name == "must_end":
            return None
        sys.settrace(None)
        answers.append(channel.must_end())
        sys.settrace(trace)
        return trace

    with ours:
        ours.sendall(b'{"kind": "update"}\n{"kind": "end"}\n')
        sys.settrace(trace)
        try:
            channel.update_wanted()
            with pytest.raises(LeftJob):
                channel.enter()
        finally:
            sys.settrace(None)
    assert len(answers) > 30 and all(answers)


def test_ctrl_c_ends_a_job_with_a_grace_at_once(launcher):
    """The ranks are ended by SIGTERM, whose announcement would last for minutes."""
    words = ("--min-np", 1, "--preemption-grace", 600)
    process = launcher.start_python(2, elastic_ranks.count_steps, *words)
    launcher.wait_for(2, "in.2.rank")
    process.send_signal(signal.SIGINT)
    _, err = finish(process, 128 + signal.SIGINT)
    assert "has got SIGTERM" not in err
    assert launcher.processes() == []
