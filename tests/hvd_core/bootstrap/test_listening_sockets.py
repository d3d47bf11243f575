"""On which addresses the processes of a job listen: on one host, none that another host can reach. A library that is
loaded into these processes, and into no other ones, notes every call of listen() (listen_log.c)."""

import os
import sys
from pathlib import Path

import pytest

import hvd_core as hvd
from compiled import cc, compiled
from harness import run_to_the_end
from harness.frameworks import ONE_AGENT, torchrun
from harness.installed import need
from harness.rank import tell
from launchers import first_by

pytestmark = pytest.mark.timeout(180)
SOURCE = Path(__file__).with_name("listen_log.c")
LOOPBACK = {"127.0.0.1", "::1"}


def work():
    import numpy as np

    hvd.allreduce(np.ones(3), name="t")
    tell(f"pid.{os.getpid()}")


def listening(folder, command=None, launcher=(), **env):
    """The addresses on which the ranks have listened, and, if `command` is None, their launcher.

    launcher: words in front of `command` that start it without the library that notes the calls.
    """
    shim = compiled("listen_log.so", [cc(), "-shared", "-fPIC", "-O1"], [SOURCE], after=["-ldl"])
    log = folder / "listening"
    noted = {"LD_PRELOAD": str(shim), "HVD_LISTEN_LOG": str(log)}
    if launcher:
        command = [*launcher, "env", *(f"{name}={value}" for name, value in noted.items()), *command]
    run_to_the_end(2, work, folder=folder, command=command, env=env if launcher else env | noted)
    lines = [line.split() for line in log.read_text().splitlines()]
    ranks = {path.name.rpartition(".")[2] for path in folder.glob("told.*")}
    assert len(ranks) == 2
    heard = {pid for pid, _ in lines}
    assert heard & ranks, "no rank has listened, so this test sees nothing"
    return {address for pid, address in lines if command is None or pid in ranks}


# TCP everywhere: the store, the control links, and the tcp backend.
TCP = {"HOROVOD_BACKEND": "tcp", "HOROVOD_CONTROL_TRANSPORT": "tcp"}


def test_under_horovodrun(tmp_path):
    assert listening(tmp_path, **TCP) <= LOOPBACK


@pytest.mark.mpi
@first_by("mpich")
def test_under_mpirun(tmp_path, mpirun):
    assert listening(tmp_path, [*mpirun, "-np", "2", sys.executable], **TCP) <= LOOPBACK


def test_under_torchrun(tmp_path):
    need("torch", reason="torchrun comes with it")
    launcher = torchrun(*ONE_AGENT, "--no-python")
    assert listening(tmp_path, [sys.executable], launcher, **TCP) <= LOOPBACK


def test_ranks_that_count_as_several_hosts_listen_on_single_addresses(tmp_path):
    found = listening(tmp_path, **TCP, HOROVOD_SIMULATED_HOSTS="0,1")
    assert not found & {"0.0.0.0", "::"}, found
