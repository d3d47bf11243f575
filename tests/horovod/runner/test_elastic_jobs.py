"""horovodrun with elastic jobs on this machine: processes die and come, and training goes on."""

import os
import signal

import pytest

import elastic_ranks
from launchers import program_words

pytest.importorskip("hvd_core._core", reason="the engine is not built")

FOUND = "cat hosts"


def write(launcher, name, text=""):
    """Writes a file as a whole: the job reads it at any moment."""
    (launcher.folder / f"{name}.new").write_text(text)
    (launcher.folder / f"{name}.new").rename(launcher.folder / name)


def start(launcher, program, *words):
    return launcher.start(*words, *program_words(program))


def finish(process, code=0):
    out, err = (data.decode() for data in process.communicate(timeout=200))
    assert process.returncode == code, err
    return out, err


def test_training_goes_on_without_a_killed_rank_and_then_with_a_new_one(launcher):
    process = start(launcher, elastic_ranks.count_steps, "-np", 2, "--min-np", 1)
    launcher.wait_for(1, "in.2.rank0")
    (killed,) = launcher.wait_for(1, "in.2.rank1")
    for file in launcher.folder.glob("in.2.*"):
        file.unlink()
    os.kill(int(killed), signal.SIGKILL)
    launcher.wait_for(2, "in.2.rank")  # a new process has taken the slot
    write(launcher, "enough")
    out, err = finish(process)
    assert sorted(out.splitlines()) == [
        "[0]<stdout>:rank 0 of 2 is done, some steps",
        "[2]<stdout>:rank 1 of 2 is done, some steps",
    ]
    assert "process 1 has ended (killed by SIGKILL)" in err
    assert "; this world of the elastic job ends" in err and "the job ends" not in err
    assert launcher.processes() == []


def test_ranks_come_and_go_as_the_discovery_script_says(launcher):
    write(launcher, "hosts", "localhost:1\n")
    words = ("-np", 1, "--min-np", 1, "--max-np", 2, "--host-discovery-script", FOUND)
    process = start(launcher, elastic_ranks.count_steps, *words)
    (first,) = launcher.wait_for(1, "in.1.rank0")
    write(launcher, "hosts", "localhost:5\n")
    assert first in launcher.wait_for(2, "in.2.rank")
    (launcher.folder / f"in.1.rank0.{first}").unlink()
    write(launcher, "hosts", "localhost:1\n")
    assert launcher.wait_for(1, "in.1.rank0") == [first]
    write(launcher, "enough")
    out, _ = finish(process)
    assert out == "[0]<stdout>:rank 0 of 1 is done, some steps\n"


def test_a_spare_takes_the_place_of_a_killed_rank_at_once(launcher):
    words = ("-np", 2, "--min-np", 2, "--max-np", 2, "--spares", 1, "-H", "localhost:3", "--verbose")
    process = start(launcher, elastic_ranks.count_steps, *words)
    launcher.wait_for(1, "in.2.rank0")
    (killed,) = launcher.wait_for(1, "in.2.rank1")
    (launcher.folder / f"in.2.rank1.{killed}").unlink()
    os.kill(int(killed), signal.SIGKILL)
    launcher.wait_for(1, "in.2.rank1")
    write(launcher, "enough")
    out, err = finish(process)
    assert sorted(line.partition(":")[2] for line in out.splitlines()) == [
        "rank 0 of 2 is done, some steps",
        "rank 1 of 2 is done, some steps",
    ]
    assert "world 2: 2 ranks" in err
    assert launcher.processes() == []


def test_training_goes_on_from_the_last_commit(launcher):
    process = start(launcher, elastic_ranks.loses_uncommitted_steps, "-np", 2, "--min-np", 1)
    launcher.wait_for(1, "committed.rank0")
    (killed,) = launcher.wait_for(1, "committed.rank1")
    os.kill(int(killed), signal.SIGKILL)
    out, _ = finish(process)
    # One line, or two if the replacement was quick.
    assert {line.partition(":")[2] for line in out.splitlines()} == {"goes on from 7"}


def test_a_second_training_of_a_program_goes_on_without_a_killed_rank(launcher):
    process = start(launcher, elastic_ranks.trains_twice, "-np", 3, "--min-np", 2)
    (killed,) = launcher.wait_for(1, "in.3.rank1")
    launcher.wait_for(3, "in.3.rank")
    os.kill(int(killed), signal.SIGKILL)
    launcher.wait_for(2, "in.2.rank")
    write(launcher, "enough")
    out, err = finish(process)
    assert sorted(out.splitlines()) == [
        "[0]<stdout>:rank 0 of 2 is done twice",
        "[2]<stdout>:rank 1 of 2 is done twice",
    ]
    assert "world 2: 2 ranks" in err  # no new process, which would begin with the first training


@pytest.mark.slow
def test_a_second_training_with_too_few_ranks_fails_at_once(launcher):
    process = start(launcher, elastic_ranks.trains_twice, "-np", 2, "--min-np", 2)
    (killed,) = launcher.wait_for(1, "in.2.rank1")
    launcher.wait_for(2, "in.2.rank")
    os.kill(int(killed), signal.SIGKILL)
    _, err = finish(process, 128 + signal.SIGKILL)
    assert "fewer than 2 processes are left, and a new one cannot join the program's second training" in err


def test_a_death_in_init_costs_no_job(launcher):
    process = start(launcher, elastic_ranks.dies_in_its_first_init, "-np", 3, "--min-np", 2, "--verbose")
    out, err = finish(process)
    said = [line.partition(":")[2] for line in out.splitlines()]
    assert len(said) >= 2 and set(said) <= {"one of 2", "one of 3"}  # 3, if the replacement was quick
    assert "world 2:" in err


@pytest.mark.parametrize(
    "program, says", [(elastic_ranks.disagrees, "mismatch"), (elastic_ranks.fails, "a mistake")]
)
def test_a_mistake_of_the_program_ends_the_job(launcher, program, says):
    process = start(launcher, program, "-np", 2, "--min-np", 1)
    _, err = finish(process, 1)
    assert says in err
    assert "all ranks that had the state of the training have died" in err
    assert "Exit code: 1" in err
    assert "world 2" not in err


def test_processes_that_all_end_early_end_the_job(launcher):
    process = start(launcher, elastic_ranks.ends_at_once, "-np", 2, "--min-np", 1)
    _, err = finish(process, 5)
    assert "Exit code: 5" in err


def test_a_script_that_fails_at_first_is_asked_again(launcher):
    script = "cat hosts || { echo localhost:1 > hosts; exit 3; }"
    words = ("-np", 1, "--min-np", 1, "--host-discovery-script", script)
    write(launcher, "enough")
    out, err = finish(start(launcher, elastic_ranks.count_steps, *words))
    assert out == "[0]<stdout>:rank 0 of 1 is done, no steps\n"
    assert "ended with status 3: cat: hosts: No such file or directory" in err


def test_too_few_slots_are_reported(launcher):
    words = ("-np", 2, "--min-np", 2, "--host-discovery-script", "echo localhost", "--slots-per-host", 1)
    process = start(launcher, elastic_ranks.count_steps, *words, "--elastic-timeout", 2)
    _, err = finish(process, 1)
    assert "fewer than 2 slots for 2 s (--elastic-timeout): 0 processes are ready" in err
    assert "the slots that were found: localhost:1" in err


def test_a_limit_of_resets_ends_the_job(launcher):
    process = start(launcher, elastic_ranks.count_steps, "-np", 2, "--min-np", 1, "--reset-limit", 0)
    launcher.wait_for(1, "in.2.rank0")
    (killed,) = launcher.wait_for(1, "in.2.rank1")
    os.kill(int(killed), signal.SIGKILL)
    _, err = finish(process, 128 + signal.SIGKILL)
    assert "number of resets during elastic job exceeded limit: 0" in err
    assert launcher.processes() == []


def test_nothing_is_left_when_the_launcher_is_killed(launcher):
    process = start(launcher, elastic_ranks.count_steps, "-np", 2, "--min-np", 1)
    launcher.wait_for(2, "in.2.rank")
    process.kill()
    assert launcher.wait_for_none() == []


def test_ctrl_c_ends_the_job(launcher):
    process = start(launcher, elastic_ranks.count_steps, "-np", 2, "--min-np", 1)
    launcher.wait_for(2, "in.2.rank")
    process.send_signal(signal.SIGINT)
    finish(process, 128 + signal.SIGINT)
    assert launcher.processes() == []


def test_processes_on_another_host_take_part(launcher):
    """The agent of the "other host" runs here. Its processes are reached over its frames alone."""
    words = ("-np", 2, "--min-np", 1, "-H", "localhost:1,elsewhere:1", "--network-interfaces", "lo")
    words += ("--remote-shell", "sh -c 'exec {command}' {host}")
    process = start(launcher, elastic_ranks.count_steps, *words)
    (killed,) = launcher.wait_for(1, "in.2.rank1")
    os.kill(int(killed), signal.SIGKILL)
    launcher.wait_for(1, "in.1.rank0")
    write(launcher, "enough")
    out, err = finish(process)
    assert out == "[0]<stdout>:rank 0 of 1 is done, some steps\n"
    assert "process 1 on elsewhere has ended (killed by SIGKILL)" in err
