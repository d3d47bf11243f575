"""Elastic jobs whose processes are killed at random moments: each job must end with the exact result."""

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest
from launchers import program_words

import elastic_ranks

pytest.importorskip("hvd_core._core", reason="the engine is not built")

OPTIONS = ("-np", 3, "--min-np", 1, "-H", "localhost:3", "--blacklist-cooldown-range", 1, 2)


def workers(launcher):
    """The processes that run the program, apart from horovodrun and its helpers."""
    found = []
    for pid in launcher.processes():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if words[1:2] == [elastic_ranks.__file__.encode()]:
                found.append(pid)
    return found


def trained(launcher):
    """The processes that have been in a world and live: each holds the state."""
    alive = set(workers(launcher))
    noted = {
        int(file.name.rpartition(".")[2]) for file in launcher.folder.glob("in.*") if "tmp" not in file.name
    }
    return sorted(alive & noted)


def wait_for(condition):
    deadline = time.monotonic() + 120
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_random_kills(launcher, seed):
    chance = random.Random(seed)
    process = launcher.start(*OPTIONS, *program_words(elastic_ranks.count_steps))
    for _ in range(4):
        # Two that hold the state, so that one is left.
        wait_for(lambda: process.poll() is not None or len(trained(launcher)) >= 2)
        time.sleep(chance.choice([0, 0.001, 0.01, 0.03, 0.1, 0.5]) * chance.random())
        assert process.poll() is None, process.communicate()[1].decode()
        kept = trained(launcher)[0]
        os.kill(chance.choice([pid for pid in workers(launcher) if pid != kept]), signal.SIGKILL)
    wait_for(lambda: process.poll() is not None or len(trained(launcher)) >= 2)
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
