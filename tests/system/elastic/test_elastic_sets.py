"""Process sets of elastic jobs come back after each change of the ranks; Join, Adasum and groups work after it."""

import os
import signal

import pytest

import elastic_sets
from hvd_core._runtime.process_sets import Workers
from worlds import wait_for_ranks

pytest.importorskip("hvd_core._core", reason="the engine is not built")


def test_sets_come_back_in_each_world(launcher):
    words = ("--min-np", 2, "-H", "localhost:3")
    env = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}
    process = launcher.start_python(3, elastic_sets.sets, *words, env=env)
    _, killed, _ = wait_for_ranks(launcher, process, 3)
    for noted in launcher.folder.glob("in.3.*"):
        noted.unlink()
    os.kill(killed, signal.SIGKILL)
    wait_for_ranks(launcher, process, 3)  # perhaps after a world of two
    (launcher.folder / "enough").touch()
    out, err = (data.decode() for data in process.communicate(timeout=250))
    assert process.returncode == 0, err
    said = sorted(line.partition(":")[2] for line in out.splitlines())
    assert said == [f"rank {rank} of 3 is done, some steps" for rank in range(3)]


@pytest.mark.parametrize("numbers", [[0, 0], [2, 1, 2], [-1, 0], []])
def test_workers_that_no_world_can_have_are_an_error(numbers):
    with pytest.raises(ValueError, match="can be in no world"):
        Workers(numbers)
