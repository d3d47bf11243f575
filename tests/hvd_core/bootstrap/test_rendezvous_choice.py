"""How the ranks find the store: the choice from the launcher's variables, PMI-1, the store at a fixed address, and
launchers that contradict each other."""

import json
import logging
import os
import secrets

import pytest

from bootstrap_job import RANK_PROGRAM, check_healthy, reports, start
from hvd_core._base.sockets import BootstrapError, BootstrapTimeout, Deadline
from hvd_core._bootstrap import launchers, rendezvous
from hvd_core._bootstrap.launchers.identity import identify
from hvd_core._bootstrap.rendezvous import mpi4py_support
from hvd_core._bootstrap.rendezvous.pmi import Pmi1
from hvd_core._bootstrap.world import connect
from hvd_core._cli.plugin_doctor import launcher_step

STEP = {
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "4", "PMI_FD": "9"}
HYDRA = {**PMI, "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
STATIC = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_SECRET_KEY": "ab" * 32}


@pytest.mark.parametrize(
    ("environ", "mpi4py", "expected"),
    [
        ({}, True, "alone"),
        ({**STATIC, "HOROVOD_STORE": "tcp://10.0.0.1:4000"}, True, "store"),
        ({**STATIC, "HOROVOD_STORE": "rank0://10.0.0.1:4000"}, True, "rank 0"),
        ({**TORCHRUN, **STATIC, "HOROVOD_STORE": "rank0://10.0.0.1:4000"}, True, "rank 0"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "4"}, True, "unix"),
        (TORCHRUN, True, "missing"),
        ({"RANK": "1", "WORLD_SIZE": "4"}, True, "unix"),
        ({**STEP, **PMI}, True, "pmi"),
        ({**STEP, **PMI}, False, "pmi"),
        ({**STEP, **PMI, "HOROVOD_BACKEND": "mpi"}, True, "mpi4py"),
        ({**STEP, **PMI, "HOROVOD_RENDEZVOUS": "mpi4py"}, True, "mpi4py"),
        ({**STEP, "PMIX_NAMESPACE": "slurm.pmix.4.0", "PMIX_RANK": "1"}, True, "mpi4py"),
        ({**STEP, "PMIX_NAMESPACE": "slurm.pmix.4.0", "PMIX_RANK": "1"}, False, "missing"),
        (STEP, True, "missing"),
        (STEP, False, "missing"),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "4"}, True, "unix"),
        (HYDRA, True, "mpi4py"),
        (HYDRA, False, "pmi"),
        ({**HYDRA, "MPI_LOCALNRANKS": "4"}, True, "unix"),
        ({**HYDRA, "HOROVOD_RENDEZVOUS": "pmi"}, True, "pmi"),
        (OPENMPI, True, "mpi4py"),
        (OPENMPI, False, "missing"),
        ({"PMIX_RANK": "1"}, True, "mpi4py"),
        ({"PMIX_RANK": "1"}, False, "missing"),
    ],
)
def test_the_way_of_each_launcher(monkeypatch, environ, mpi4py, expected):
    monkeypatch.setattr(mpi4py_support, "is_installed", lambda: mpi4py)
    monkeypatch.setattr(mpi4py_support, "is_running", lambda: False)
    choice = rendezvous.choose(identify(environ), environ)
    assert choice.method == expected and choice.reason
    assert bool(choice.remedy) == (expected == "missing" or "PMIX_NAMESPACE" in environ)
    if expected == "missing" and "SLURM_PROCID" in environ:
        assert "srun --mpi=pmi2" in choice.remedy


def test_mpi_that_runs_is_used_and_the_process_manager_left_to_it(monkeypatch):
    monkeypatch.setattr(mpi4py_support, "is_running", lambda: True)
    environ = {**STEP, **PMI}
    assert rendezvous.choose(identify(environ), environ).method == "mpi4py"


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize("mpirun", ["mpich"], indirect=True)
def test_ranks_of_mpich_find_each_other_over_its_process_manager(mpirun):
    job = start([*mpirun, "-np", "3", *_program("twice")], HOROVOD_RENDEZVOUS="pmi")
    check_kept(reports([job]), 3, "mpich")


def _program(*words):
    import sys

    return [sys.executable, RANK_PROGRAM, *words]


def check_kept(worlds, size, launcher):
    """check_healthy(), for a store that rank 0 serves until the processes end: the store's descriptors stay open, and the
    others' connections, which keep it."""
    for world in worlds:
        assert "error" not in world, world
        world["left_over"] = world["left_over"] if len(world["left_over"]) > 4 else []
    check_healthy(worlds, size, launcher)


@pytest.mark.slow
@pytest.mark.parametrize("names", [("HOROVOD_RANK", "HOROVOD_SIZE"), ("RANK", "WORLD_SIZE")])
def test_a_static_environment_with_the_store_at_rank_0(names):
    pid = os.getpid()
    # An address of this test alone, and a port below those that the kernel gives away.
    address = f"127.{1 + pid // 62500 % 250}.{1 + pid // 250 % 250}.{1 + pid % 250}"
    place = f"rank0://{address}:{20000 + secrets.randbelow(9000)}"
    more = {"HOROVOD_STORE": place, "HOROVOD_SECRET_KEY": secrets.token_hex(32)}
    ranks = [start(_program("twice"), **{names[0]: rank, names[1]: 3}, **more) for rank in (2, 1, 0)]
    check_kept(reports(ranks), 3, {"RANK": "torchrun"}.get(names[0], "horovodrun"))


def test_an_address_that_rank_0_cannot_serve():
    environ = {**STATIC, "HOROVOD_RANK": "0", "HOROVOD_STORE": "rank0://no-such-host.invalid:4000"}
    with pytest.raises(BootstrapError, match=r"rank 0 cannot look up 'no-such-host.invalid'"):
        connect(environ, deadline_s=5)
    with pytest.raises(ValueError, match="HOROVOD_STORE: bad store address 'tcp://a'"):
        connect({**STATIC, "HOROVOD_STORE": "rank0://a"})
    with pytest.raises(ValueError, match="set HOROVOD_STORE=rank0://HOST:PORT"):
        connect(STATIC)


def test_a_descriptor_that_is_no_process_manager(tmp_path):
    with pytest.raises(BootstrapError, match="PMI_FD=77777 is no descriptor of this process"):
        Pmi1({"PMI_FD": "77777"}, Deadline(5))
    with open(os.devnull, "rb+") as nothing, pytest.raises(BootstrapError, match="it closed the connection"):
        Pmi1({"PMI_FD": str(nothing.fileno())}, Deadline(5))


def test_a_process_manager_that_does_not_answer():
    import socket

    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(BootstrapTimeout, match=r"\(PMI-1\) did not answer within 0.2 s"):
        Pmi1({"PMI_FD": str(theirs.fileno())}, Deadline(0.2))


LEFT_OVER = {"RANK": "0", "WORLD_SIZE": "1", **STEP}


def test_launchers_that_contradict_each_other(caplog):
    text = (
        "The variables of 2 launchers are set and differ: torchrun says rank 0 of 1 (RANK, WORLD_SIZE), which is used; "
        "srun says rank 1 of 4 (SLURM_PROCID, SLURM_STEP_NUM_TASKS). If the first is left over"
    )
    assert launchers.disagreement(LEFT_OVER).startswith(text)
    assert launchers.disagreement(STEP) == ""
    with caplog.at_level(logging.WARNING, "horovod"):
        connect(LEFT_OVER).close()
    assert text in caplog.text
    caplog.clear()
    # mpirun starts its helpers by srun: their variables are the outer launcher's, and no reason for a warning.
    both = {**OPENMPI, **STEP, "SLURM_PROCID": "0"}
    with caplog.at_level(logging.WARNING, "horovod"):
        launchers.warn_of_contradiction(identify(both).size, both)
    assert caplog.text == ""


def test_missing_ranks_are_reported_with_the_contradiction():
    environ = {**LEFT_OVER, "RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "3"}
    with pytest.raises(
        BootstrapTimeout, match=r"(?s)rank 0 has not shown up.*torchrun says rank 1 of 2 .*srun says"
    ):
        connect(environ, deadline_s=0.5)


def test_the_step_of_the_doctor():
    step = launcher_step({**STEP, **PMI})
    assert (step.verdict, step.text) == ("good", "mpich: rank 1 of 4, 2 of them on this host")
    assert step.more == [
        "recognised by: mpich says rank 1 of 4 (PMI_RANK, PMI_SIZE)",
        "rendezvous: pmi, because the launcher's process manager speaks PMI-1 (PMI_FD)",
    ]
    step = launcher_step(STEP)
    assert step.verdict == "bad" and step.more[-1].startswith("fix: start with srun --mpi=pmi2")
    step = launcher_step({"RANK": "1"})
    assert step.verdict == "bad" and "RANK='1' is set but WORLD_SIZE is not" in step.text
    step = launcher_step({"SLURM_JOB_ID": "7", "PATH": "", "KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert step.verdict == "good" and "a job of one" in step.text
    assert "srun --mpi=pmi2 -n N python train.py" in step.more[0] and "HOROVOD_STORE=rank0://" in step.more[1]
    assert launcher_step(LEFT_OVER).verdict == "note"
    json.dumps(step.__dict__)
