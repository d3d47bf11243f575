"""A launcher that is killed: its ranks raise the error that says so, and end. mpirun of both MPIs, and torchrun."""

import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import hvd_core as hvd
from harness import launch
from harness import rank as tools
from harness.frameworks import ONE_AGENT, torchrun
from harness.installed import need
from hvd_core._base.processes import process_stat
from hvd_core._bootstrap.launchers import PROCESS_NAMES
from hvd_core._bootstrap.launchers.identity import Identity, identify
from hvd_core._bootstrap.launchers.process import launcher_pid, watch
from launchers import first_by, send_each

WITHIN = 100
FIND_LAUNCHER = str(Path(__file__).with_name("find_launcher.py"))


def wait_for_what_does_not_come():
    """Rank 0 is in a collective, rank 1 in its own code. Each leaves its pid, the launcher's, and then its error."""
    from hvd_core._runtime import current_job

    rank = hvd.rank()
    launcher = current_job.world().launcher_process.text.rpartition("pid ")[2].partition(",")[0]
    (tools.folder / f"pids.{rank}").write_text(f"{os.getpid()} {launcher}")
    tools.tell(f"ready.{rank}")
    try:
        while rank == 1 and not current_job.engine().stopped:
            time.sleep(0.01)
        hvd.allreduce(np.ones(1), name="one rank alone")
    except hvd.HorovodInternalError as error:
        (tools.folder / f"error.{rank}.new").write_text(str(error))
        (tools.folder / f"error.{rank}.new").rename(tools.folder / f"error.{rank}")


def wait_in_init():
    """Rank 1 does not come to init(), in which rank 0 waits."""
    identity = identify(os.environ)
    launcher = launcher_pid(identity.variable)[0]
    (tools.folder / f"pids.{identity.rank}").write_text(f"{os.getpid()} {launcher}")
    tools.tell(f"ready.{identity.rank}")
    error = tools.folder / "error.0"
    if identity.rank == 1:
        while not error.exists():
            time.sleep(0.01)
        return
    try:
        hvd.init()
    except hvd.HorovodInternalError as lost:
        error.with_suffix(".new").write_text(str(lost))
        error.with_suffix(".new").rename(error)


def runs(pid):
    """Whether the process exists and is no zombie, which it may stay where the first process of a container waits for
    no others."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def has_pidfd(pid):
    found = []
    with suppress(OSError):  # a descriptor that is closed meanwhile
        found = [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()]
    return any("pidfd" in link for link in found)


def await_that(condition, text):
    end = time.monotonic() + WITHIN
    while not condition():
        assert time.monotonic() < end, f"not within {WITHIN} s: {text}"
        time.sleep(0.01)


def check_ranks_end_without(command, folder, names, during_init=False):
    program = wait_in_init if during_init else wait_for_what_does_not_come
    job = launch(
        2, program, folder=folder, command=command, init=None if during_init else "hvd_core",
        env={"HOROVOD_START_TIMEOUT": "600"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    pids = []
    try:
        ready = [folder / f"told.ready.{rank}" for rank in range(2)]
        await_that(lambda: all(path.exists() for path in ready), "both ranks are there")
        found = [(folder / f"pids.{rank}").read_text().split() for rank in range(2)]
        pids = [int(pid) for pid, _ in found]
        (launcher,) = {int(parent) for _, parent in found}
        if during_init:
            await_that(lambda: has_pidfd(pids[0]), "rank 0 is in init()")
        os.kill(launcher, signal.SIGKILL)
        errors = [folder / f"error.{rank}" for rank in range(1 if during_init else 2)]
        await_that(
            lambda: all(path.exists() for path in errors), "the ranks have raised HorovodInternalError"
        )
        for path in errors:
            text = path.read_text()
            assert any(f"is gone: {name}, pid {launcher}, has ended" in text for name in names), text
        await_that(lambda: not any(map(runs, pids)), "both ranks have ended")
    finally:
        send_each(signal.SIGKILL, filter(runs, pids))
        job.kill()
        job.wait()


@pytest.mark.mpi
@first_by("openmpi")
def test_ranks_end_when_mpirun_is_killed(mpirun, tmp_path):
    check_ranks_end_without([*mpirun, "-np", "2", sys.executable], tmp_path / "job", PROCESS_NAMES)


@pytest.mark.mpi
@first_by("openmpi")
def test_a_rank_in_init_ends_when_mpirun_is_killed(mpirun, tmp_path):
    check_ranks_end_without([*mpirun, "-np", "2", sys.executable], tmp_path / "job", PROCESS_NAMES, True)


def test_ranks_end_when_torchrun_is_killed(tmp_path):
    need("torch", reason="torchrun comes with it")
    check_ranks_end_without(torchrun(*ONE_AGENT), tmp_path / "job", ["torchrun"])


def test_a_parent_between_launcher_and_rank_may_end(tmp_path):
    """A shell that runs below the launcher, and starts the rank, ends: the rank has another parent then."""
    (tmp_path / "mpirun").symlink_to("/bin/sh")
    ours = dict.fromkeys(("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"), "0")
    ours |= dict.fromkeys(("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"), "2")
    exports = " ".join(f"{name}={value}" for name, value in ours.items())
    shell = f"exec 3<&0; {shlex.join([sys.executable, FIND_LAUNCHER])} <&3 & echo $$ $!; wait"
    inner = f'env {exports} sh -c "$SHELL_PROGRAM"; exit'
    job = subprocess.Popen(
        [str(tmp_path / "mpirun"), "-c", inner], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "SHELL_PROGRAM": shell},
    )  # fmt: skip
    pids = []
    try:
        middle, started = map(int, job.stdout.readline().split())
        rank, found = job.stdout.readline().split()
        pids = [middle, started, int(rank)]
        assert found == "True"

        def asked():
            job.stdin.write("\n")
            job.stdin.flush()
            ended, parent = job.stdout.readline().split()
            return ended == "True", int(parent)

        assert asked() == (False, middle)
        os.kill(job.pid, signal.SIGSTOP)  # it would end when the shell does
        os.kill(middle, signal.SIGKILL)
        await_that(lambda: asked()[1] != middle, "the rank has another parent")
        assert not asked()[0]
        os.kill(job.pid, signal.SIGKILL)
        await_that(lambda: asked()[0], "the end of the launcher is seen")
    finally:
        send_each(signal.SIGKILL, filter(runs, pids))
        job.kill()
        job.communicate()


def test_a_plain_program_watches_no_process():
    started_by_hand = {"RANK": "0", "WORLD_SIZE": "2"}
    assert process_stat(os.getppid()) is not None
    assert watch(Identity(0, 1), "here") is None
    assert watch(Identity(0, 2, launcher="horovodrun", variable="HOROVOD_RANK"), "here") is None
    assert watch(Identity(0, 2, launcher="torchrun", variable="RANK"), "here", started_by_hand) is None
