"""Elastic jobs whose processes are killed at random moments: each job must end with the exact result."""

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest

import elastic_ranks
from launchers import parent_with, program_words, send_each

pytest.importorskip("hvd_core._core", reason="the engine is not built")

OPTIONS = ("-np", 3, "--min-np", 1, "-H", "localhost:3", "--blacklist-cooldown-range", 1, 2)


def noted(launcher, what):
    """The living processes that have left such a note."""
    pids = {int(file.suffix[1:]) for file in launcher.folder.glob(f"{what}.*[0-9]")}
    return {pid for pid in pids if Path(f"/proc/{pid}").exists()}


def workers(launcher):
    """The processes that run the program, apart from horovodrun and its helpers."""
    noted_numbers = {file.name.split(".")[1] for file in launcher.folder.glob("begun.*[0-9]")}
    variables = {f"HOROVOD_ELASTIC_WORKER={number}".encode() for number in noted_numbers}
    found = noted(launcher, "begun")
    for pid in launcher.processes():
        with contextlib.suppress(OSError):
            words, environment = (
                Path(f"/proc/{pid}/{name}").read_bytes().split(b"\0") for name in ("cmdline", "environ")
            )
            if words[1:2] == [elastic_ranks.__file__.encode()]:
                found |= set() if variables.intersection(environment) else {pid}
    return sorted(found)


def trained(launcher):
    """The processes that have been in a world and live: each holds the state."""
    return sorted(noted(launcher, "in"))


def wait_for(condition):
    deadline = time.monotonic() + 120
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


SLOW = pytest.mark.slow
SEEDS = [*range(2), *(pytest.param(seed, marks=SLOW) for seed in range(2, 300))]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_kills(launcher, seed):
    chance = random.Random(seed)
    process = launcher.start(*OPTIONS, *program_words(elastic_ranks.count_steps))
    killed = set()  # a process that was sent SIGKILL may be there for a while

    def two_hold_the_state():
        return process.poll() is not None or len(set(trained(launcher)) - killed) >= 2

    for _ in range(4):
        wait_for(two_hold_the_state)  # so that one is left
        time.sleep(chance.choice([0, 0.001, 0.01, 0.03, 0.1, 0.5]) * chance.random())
        assert process.poll() is None, process.communicate()[1].decode()
        kept = min(set(trained(launcher)) - killed)
        victim = chance.choice([pid for pid in workers(launcher) if pid not in {kept, *killed}])
        killed.add(victim)
        send_each(signal.SIGKILL, [victim])
    wait_for(two_hold_the_state)
    (launcher.folder / "enough").touch()
    out, err = (data.decode() for data in process.communicate(timeout=200))
    assert process.returncode == 0, err
    assert out.count("is done, some steps") == len(out.splitlines()) >= 1
    assert launcher.processes() == []


@pytest.mark.slow
@pytest.mark.parametrize("victim", range(3))
@pytest.mark.parametrize("after_ms", [0, 2, 4, 6, 8, 10, 13, 16, 20, 25, 30, 50])
def test_a_death_at_any_moment_of_init(launcher, victim, after_ms):
    words = program_words(elastic_ranks.dies_some_ms_after_its_place_is_told)
    done = launcher.run(*OPTIONS, *words, env={"VICTIM": str(victim), "AFTER_MS": str(after_ms)})
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 2
    print(done.stdout)


@pytest.mark.parametrize(
    "phase, victim",
    [
        ("sync", 0),
        ("restore", 0),
        pytest.param("commit", 0, marks=pytest.mark.slow),
        pytest.param("restore", 1, marks=pytest.mark.slow),
        pytest.param("reset", 0, marks=pytest.mark.slow),
    ],
)
def test_a_death_in_each_phase(launcher, phase, victim):
    """Beside the victim, process 2 dies. One of the other two is always left, and the sum is exact."""
    words = program_words(elastic_ranks.dies_in_a_phase)
    options = ("-np", 4, "--min-np", 1, "-H", "localhost:4", "--blacklist-cooldown-range", 1, 2)
    done = launcher.run(*options, *words, env={"VICTIM": str(victim), "PHASE": phase})
    assert done.returncode == 0, done.stderr
    said = {line.partition(":")[2] for line in done.stdout.splitlines()}
    assert said == {f"the sum is {sum(range(40))}"}
    assert "process 2 has ended (killed by SIGKILL)" in done.stderr
    assert f"process {victim} has ended (killed by SIGKILL)" in done.stderr


def test_horovodrun_kills_ranks_on_purpose(launcher):
    """Until two of them have been killed and training goes on; then the job is ended."""
    words = ("--min-np", 1, "-H", "localhost:3", "--elastic-chaos", 1)
    process = launcher.start_python(3, elastic_ranks.count_steps, *words)
    text, kills = "", 0
    while kills < 2 or "world " not in text.rpartition("on purpose")[2]:
        line = process.stderr.readline().decode()
        assert line, text
        kills += "is killed on purpose (--elastic-chaos)" in line
        text += line
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=200)
    assert process.returncode == 128 + signal.SIGINT
    assert launcher.processes() == []


@pytest.mark.slow
@pytest.mark.parametrize("helper", ["horovod._runner.agent", "supervisor.py"])
def test_a_killed_helper_of_a_rank_is_the_end_of_that_rank(launcher, helper):
    """Both belong to the host "elsewhere", whose agent runs here."""
    words = ("-np", 2, "--min-np", 1, "-H", "localhost:1,elsewhere:1", "--network-interfaces", "lo")
    words += ("--remote-shell", "sh -c 'exec {command}' {host}")
    process = launcher.start(*words, *program_words(elastic_ranks.count_steps))
    (other,) = launcher.wait_for(1, "in.2.rank1")
    launcher.wait_for(1, "in.2.rank0")
    os.kill(parent_with(helper, int(other)), signal.SIGKILL)
    launcher.wait_for(1, "in.1.rank0")
    (launcher.folder / "enough").touch()
    out, err = (data.decode() for data in process.communicate(timeout=200))
    assert process.returncode == 0, err
    assert out == "[0]<stdout>:rank 0 of 1 is done, some steps\n"
    assert launcher.wait_for_none() == []


@pytest.mark.slow
def test_a_job_below_its_minimum_goes_on_when_there_are_slots_again(launcher):
    """The slot of the killed process is gone at first."""
    hosts = launcher.folder / "hosts"

    def discover(text):
        (launcher.folder / "hosts.new").write_text(text)
        (launcher.folder / "hosts.new").rename(hosts)

    discover("localhost:2\n")
    words = ("-np", 2, "--min-np", 2, "--host-discovery-script", "cat hosts")
    words += ("--blacklist-cooldown-range", 1, 2)
    process = launcher.start(*words, *program_words(elastic_ranks.count_steps))
    launcher.wait_for(1, "in.2.rank0")
    (killed,) = launcher.wait_for(1, "in.2.rank1")
    for _ in range(3):
        discover("localhost:1\n")
        line = b""
        while b"slots: localhost:1" not in line:
            line = process.stderr.readline()
            assert line, process.wait()
        for file in launcher.folder.glob("in.2.*"):
            file.unlink()
        os.kill(int(killed), signal.SIGKILL)
        while b"has ended (killed by SIGKILL)" not in line:
            line = process.stderr.readline()
            assert line, process.wait()
        assert process.poll() is None
        discover("localhost:2\n")
        launcher.wait_for(1, "in.2.rank0")
        (killed,) = launcher.wait_for(1, "in.2.rank1")
    (launcher.folder / "enough").touch()
    out, err = (data.decode() for data in process.communicate(timeout=200))
    assert process.returncode == 0, err
    assert out.count("of 2 is done, some steps") == 2


@pytest.mark.slow
def test_a_stopped_process_is_killed_and_the_others_go_on(launcher):
    process = launcher.start(
        *OPTIONS, *program_words(elastic_ranks.count_steps), env={"HOROVOD_ELASTIC_GRACE": "2"}
    )
    wait_for(lambda: process.poll() is not None or len(list(launcher.folder.glob("in.3.rank?.*[0-9]"))) >= 3)
    by_rank = sorted(launcher.folder.glob("in.3.rank*"), key=lambda file: file.name)
    stopped, _, killed = (int(file.name.rpartition(".")[2]) for file in by_rank)
    os.kill(stopped, signal.SIGSTOP)
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: process.poll() is not None or stopped not in workers(launcher))
    wait_for(lambda: process.poll() is not None or len(trained(launcher)) >= 2)
    (launcher.folder / "enough").touch()
    out, err = (data.decode() for data in process.communicate(timeout=200))
    assert process.returncode == 0, err
    assert "has not left its world within 2 s (HOROVOD_ELASTIC_GRACE) and is killed" in err
    assert out.count("is done, some steps") >= 1
