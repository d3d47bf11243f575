"""connect() under launchers that bring no store of ours: both MPIs, torchrun; started for real."""

import re
import shlex
import sys
import time
from pathlib import Path

import pytest

from bootstrap_job import RANK_PROGRAM, check_healthy, reports, start
from harness.frameworks import torchrun
from harness.installed import need
from launchers import first_by

pytestmark = pytest.mark.timeout(180)
PROGRAM = [sys.executable, RANK_PROGRAM]


def name_of(mpirun):
    return "openmpi" if len(mpirun) > 1 else "mpich"


# The next tests have jobs of two and three.
@pytest.mark.mpi
@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.slow), 4])
def test_mpirun(mpirun, size):
    worlds = reports([start([*mpirun, "-np", str(size), *PROGRAM])])
    worlds = check_healthy(worlds, size, name_of(mpirun))
    assert [world["local_rank"] for world in worlds] == list(range(size))


@pytest.mark.mpi
def test_mpirun_again_after_close(mpirun):
    check_healthy(reports([start([*mpirun, "-np", "3", *PROGRAM, "twice"])]), 3, name_of(mpirun))


@pytest.mark.mpi
def test_mpirun_two_jobs_at_once_do_not_meet(mpirun):
    jobs = [start([*mpirun, "-np", "2", *PROGRAM]) for _ in range(2)]
    one, two = (check_healthy(reports([job]), 2, name_of(mpirun)) for job in jobs)
    assert set(one[0]["pids"]).isdisjoint(two[0]["pids"])


@pytest.mark.mpi
def test_mpirun_through_a_wrapper_script(mpirun):
    # Each rank has a parent of its own here; what they share is further up.
    command = shlex.join(map(str, PROGRAM))
    job = start([*mpirun, "-np", "2", "sh", "-c", f"{command} fork; exit $?"])
    for world in check_healthy(reports([job]), 2, name_of(mpirun)):
        # Rank 0 holds the store here: its forked child must not keep the port.
        assert world["fork"]["open"] == []


@pytest.mark.mpi
@first_by("openmpi")
def test_mpirun_missing_rank_is_named(mpirun):
    # Rank 0 stays away longer than rank 1 waits; then rank 0 misses rank 1.
    script = 'case "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" in 0) sleep 10;; esac; exec "$@"'
    started = time.monotonic()
    job = start([*mpirun, "-np", "2", "sh", "-c", script, "sh", *PROGRAM], HOROVOD_START_TIMEOUT="2")
    said = reports([job])
    assert time.monotonic() - started < 60
    assert any("rank 0 has not shown up on this host within 2 s" in report["text"] for report in said), said


@pytest.mark.mpi
def test_mpirun_over_mpi4py(mpirun):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    library = {"openmpi": "libmpi.so.40", "mpich": "libmpi.so.12"}[name_of(mpirun)]
    beside = Path(mpirun[0]).parents[1] / "lib" / library
    told = {"MPI4PY_LIBMPI": beside} if beside.exists() else {}
    said = reports([start([*mpirun, "-np", "2", *PROGRAM], HOROVOD_RENDEZVOUS="mpi4py", **told)])
    # An MPI that runs in the process keeps descriptors of its own.
    for world in said:
        assert "error" not in world, world
        world["left_over"], world["inheritable"] = [], []
    check_healthy(said, 2, name_of(mpirun))


@pytest.mark.mpi
def test_mpirun_with_an_mpi4py_of_another_mpi_is_told(mpirun):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    other = {"openmpi": "mpich", "mpich": "openmpi"}[name_of(mpirun)]
    extra = {"HOROVOD_RENDEZVOUS": "mpi4py", "MPI4PY_MPIABI": other}
    for report in reports([start([*mpirun, "-np", "2", *PROGRAM], **extra)]):
        assert report["error"] == "BootstrapError"
        # Which of the two depends on whether the other MPI is installed too.
        assert re.search("mpi4py uses another MPI than the launcher|mpi4py .* cannot be used", report["text"])


def test_torchrun():
    need("torch", reason="torchrun comes with it")
    job = start([*torchrun(), RANK_PROGRAM, "twice"])
    check_healthy(reports([job], timeout=120), 2, "torchrun")


def test_environment_that_lies_about_the_host_is_told_what_is_missing(monkeypatch):
    from hvd_core._base.sockets import BootstrapError
    from hvd_core._bootstrap.rendezvous import mpi4py_support
    from hvd_core._bootstrap.world import connect

    monkeypatch.setattr(mpi4py_support, "is_installed", lambda: False)
    spread = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    with pytest.raises(BootstrapError, match=re.escape("torchrun started 2 of them on this host")) as caught:
        connect(spread)
    assert "HOROVOD_STORE=rank0://HOST:PORT" in str(caught.value) and "horovodrun" in str(caught.value)
    hydra = {"PMI_RANK": "0", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
    with pytest.raises(BootstrapError, match=r"mpich started 2 of them .*pip install mpi4py"):
        connect(hydra)
    with pytest.raises(BootstrapError, match="PMIX_RANK is set, but nothing in the environment says how"):
        connect({"PMIX_RANK": "0"})
    with pytest.raises(ValueError, match="HOROVOD_RENDEZVOUS='pigeon'"):
        connect({**spread, "HOROVOD_RENDEZVOUS": "pigeon"})
