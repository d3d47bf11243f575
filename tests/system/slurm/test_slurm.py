"""`srun` on two hosts with a real Slurm: the ranks find each other over its process manager, without MPI."""

import re
import sys
from pathlib import Path

import pytest

import slurm_ranks

pytestmark = [pytest.mark.slow, pytest.mark.netns, pytest.mark.timeout(400)]
EXAMPLE = Path(__file__).parents[3] / "examples" / "pytorch_digits.py"
ACROSS = ("-N", "2", "-n", "4")


def program(function):
    return [sys.executable, slurm_ranks.__file__, function.__name__]


def test_ranks_of_two_hosts_find_each_other_over_pmi2(slurm):
    code, out, err = slurm.srun(*ACROSS, "--mpi=pmi2", *program(slurm_ranks.reduce_three_times))
    assert code == 0, out + err
    expected = [
        f"place {rank} 4 {rank % 2} 2 {rank // 2} 2 sum 10.0 10.0 pair {p} {p} True False"
        for rank, p in enumerate((1.0, 1.0, 5.0, 5.0))
    ]
    assert sorted(out.splitlines()) == expected


def test_without_a_process_manager_no_mpi_is_started(slurm):
    code, out, err = slurm.srun("-N", "2", "-n", "2", "--mpi=none", *program(slurm_ranks.only_init))
    assert code == 1, out + err
    assert "srun started 1 of them on this host, so they need a way to find each other" in err
    assert "fix: start with srun --mpi=pmi2 (or set SLURM_MPI_TYPE=pmi2), or start with horovodrun" in err
    assert "MPI_Init" not in err


@pytest.mark.slow
def test_doctor_tells_how_the_ranks_find_each_other(slurm):
    words = [sys.executable, "-m", "hvd_core._cli", "doctor", "--no-open", "shm"]
    code, out, err = slurm.srun(*ACROSS, "-l", "--mpi=pmi2", *words)
    assert code == 0, out + err
    assert re.search(r"^3: .*launcher +mpich: rank 3 of 4, 2 of them on this host", out, re.MULTILINE)
    assert "rendezvous: pmi, because the launcher's process manager speaks PMI-1 (PMI_FD)" in out
    code, out, err = slurm.srun("-N", "2", "-n", "2", "--mpi=none", *words)
    assert code == 1
    assert "its ranks cannot find each other" in out and "fix: start with srun --mpi=pmi2" in out


@pytest.mark.slow
def test_an_example_trains_on_two_hosts_without_mpi(slurm):
    hidden = slurm.folder / "no_mpi4py"  # as if it were not installed
    hidden.mkdir()
    (hidden / "mpi4py.py").write_text("raise ImportError('not installed')\n")
    path = f"{hidden}:{slurm.environment()['PYTHONPATH']}"
    words = [sys.executable, EXAMPLE, "--epochs", "8", "--output", slurm.folder / "out"]
    code, out, err = slurm.srun(*ACROSS, "--mpi=pmi2", *words, env={"PYTHONPATH": path}, timeout=350)
    assert code == 0, out + err
    assert float(re.search(r"test accuracy ([\d.]+) %", out)[1]) > 90
    assert "4 process(es) on cpu" in out


@pytest.mark.slow
def test_a_killed_rank_is_named_by_the_survivors(slurm):
    code, out, err = slurm.srun(
        *ACROSS, "--mpi=pmi2", "--kill-on-bad-exit=0", *program(slurm_ranks.die_in_training)
    )
    assert code == 137, out + err
    survivors = [line for line in out.splitlines() if line.startswith("survivor")]
    assert len(survivors) == 3
    assert all("rank 3 (host" in line for line in survivors), out


@pytest.mark.slow
def test_mpi_before_init_and_after(slurm):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    library = Path(sys.prefix) / "mpich" / "lib" / "libmpi.so.12"
    if not library.exists():
        pytest.skip("MPICH is not in .venv/mpich")
    env = {"MPI4PY_LIBMPI": str(library)}
    code, out, err = slurm.srun(*ACROSS, "--mpi=pmi2", *program(slurm_ranks.mpi_first), env=env)
    assert (code, out) == (0, "both 4 4 4\n" * 4), out + err
    code, out, err = slurm.srun(*ACROSS, "--mpi=pmi2", *program(slurm_ranks.ask_for_mpi), env=env)
    assert code == 0, out + err
    assert out.count("Start MPI before init(), by 'from mpi4py import MPI'") == 4
