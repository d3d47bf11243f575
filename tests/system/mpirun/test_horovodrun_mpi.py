"""horovodrun --mpi: mpirun starts the ranks, and horovodrun holds the store and watches over the end."""

import os
import re
import signal
import stat
import sys
import time
from pathlib import Path

import pytest

import horovod
import mpirun_ranks
from launchers import first_by, program_words

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(400)]

WRITE_IN_PIECES = Path(__file__).with_name("write_in_pieces.py")


def test_job(by_horovodrun):
    done = by_horovodrun.run(
        *(
            "--mpi",
            "-np",
            2,
            "--fusion-threshold-mb",
            1,
            "-prefix-timestamp",
            "--binding-args=--bind-to numa",
        ),
        *program_words(mpirun_ranks.report_variables),
        env={"MINE": "a b", "HOROVOD_RANK": "7", "HOROVOD_SIZE": "9"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    year = rf"\w+ \w+ +\d+ [\d:]+ {time.localtime().tm_year}"
    for rank in range(2):
        line = rf"^{year}{re.escape(by_horovodrun.tag(rank))}3.0 {rank} 2 a b 1048576 0$"
        assert re.search(line, done.stdout, re.M), done.stdout


def test_lines_in_pieces(by_horovodrun):
    done = by_horovodrun.run("--mpi", "-np", 3, sys.executable, WRITE_IN_PIECES)
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        out, err = by_horovodrun.tag(rank), by_horovodrun.tag(rank, "stderr")
        lines = [line[len(out) :] for line in done.stdout.split("\n") if line.startswith(out)]
        expected = [[f"{rank}:{number}:[1,{'x' * (number * 300)}ä", ""] for number in range(40)]
        # On a busy machine a rank may stop inside of a line for so long that horovodrun shows the part that is there.
        assert "".join(lines) == "".join([*(line for two in expected for line in two), "[1"])
        assert 81 <= len(lines) < 100
        assert done.stderr.split("\n").count(f"{err}error {rank}") == 40, done.stderr
    assert all(line.startswith("[") for line in done.stdout.split("\n")[:-1]), done.stdout


def test_labels_of_the_users_own(by_horovodrun):
    """MPICH refuses a second option for them. What mpirun prints then is passed on as it is."""
    own = "-l" if by_horovodrun.kind == "MPICH" else "--timestamp-output"
    done = by_horovodrun.run("--mpi", "-np", 1, f"--mpi-args={own}", "echo", "line")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\[0\] line\n" if own == "-l" else r".*\d+.*<stdout>: ?line\n", done.stdout)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_end_of_the_launcher(by_horovodrun, number):
    job = by_horovodrun.start("--mpi", "-np", 2, *program_words(mpirun_ranks.sleep_after_a_sum))
    seen = b""
    while seen.count(b"up") < 2:
        seen += job.stdout.readline()
    job.send_signal(number)
    out, err = job.communicate(timeout=100)
    assert job.returncode == (130 if number == signal.SIGINT else -9), out + err
    assert by_horovodrun.wait_for_none() == []


def test_exit_code_and_files(by_horovodrun):
    code = "import os, sys; print('line', flush=True); sys.exit(5)"
    done = by_horovodrun.run(
        "--mpi", "-np", 1, "--verbose", "--output-filename", "out", sys.executable, "-c", code
    )
    assert done.returncode == 5, done.stderr
    assert "horovodrun: mpirun failed with exit code 5" in done.stderr
    assert f"horovodrun: {by_horovodrun.kind} " in done.stderr
    (written,) = (path for path in (by_horovodrun.folder / "out").rglob("stdout") if path.is_file())
    assert written.read_text().strip().endswith("line") and written.parent.name == "rank.0"


def test_another_host(by_horovodrun):
    """A remote shell that stays here, with an environment as empty as a login's: what arrives came with MPI."""
    shell = by_horovodrun.folder / "shell"
    record = by_horovodrun.folder / "shell.log"
    shell.write_text(
        f'#!/bin/sh\necho "$@" >> {record}\nwhile [ "${{1#-}}" != "$1" ]; do shift; done\nshift\n'
        f'exec env -i HOME=/ PATH=/usr/bin:/bin HVD_TEST_MARK="$HVD_TEST_MARK" sh -c "$*"\n'
    )
    shell.chmod(shell.stat().st_mode | stat.S_IXUSR)
    variables = {"MINE": "a;b", "HOROVOD_FUSION_THRESHOLD": "4096"}
    by = f"--mca plm_rsh_agent {shell}" if by_horovodrun.kind == "Open MPI" else f"-launcher-exec {shell}"
    options = ["--mpi", "-np", 2, "-H", "otherhost:2", "--network-interfaces", "lo", f"--mpi-args={by}"]
    words = program_words(mpirun_ranks.report_variables, "and the secret")
    done = by_horovodrun.run(*options, *words, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"3.0 [01] 2 a;b 4096 0$", done.stdout, re.M)) == 2, done.stdout
    secrets = set(re.findall(r"secret ([0-9a-f]{64})$", done.stdout, re.M))
    assert len(secrets) == 1 and secrets.pop() not in record.read_text()


def worker():
    """A function that is pickled as a whole, as it is no module's: ranks need not import this file."""

    def work(offset):
        import numpy as np

        import hvd_core as hvd

        hvd.init()
        if offset < 0 and hvd.rank() == 1:
            raise KeyError("lost")
        return hvd.rank(), float(hvd.allreduce(np.full(1, offset, np.float64), op=hvd.Sum)[0])

    return work


@first_by("openmpi")
def test_function(by_horovodrun, monkeypatch, capfd):
    monkeypatch.setenv("PATH", by_horovodrun.path)
    assert horovod.run(worker(), (3,), num_proc=2, use_mpi=True) == [(0, 6.0), (1, 6.0)]


def test_function_that_fails(by_horovodrun, monkeypatch, capfd):
    """How mpirun ends then, and with which exit code, differs between both."""
    monkeypatch.setenv("PATH", by_horovodrun.path)
    with pytest.raises(RuntimeError, match="mpirun failed with exit code") as caught:
        horovod.run(worker(), (-1,), num_proc=2, use_mpi=True)
    assert isinstance(caught.value.__cause__, KeyError)
    assert "KeyError: 'lost'" in str(caught.value)


@first_by("mpich")
def test_backend_mpi_without_mpi(by_horovodrun):
    """Asked for the backend, horovodrun takes mpirun by itself; --gloo is a contradiction."""
    library = Path(horovod.__file__).resolve().parents[1] / "backends/mpi/src/hvd_backend_mpi/lib"
    path = str(library / "libhvd_backend_mpi.so")
    assert os.path.exists(path), "backends/mpi is not built (cmake --build)"
    variables = {
        "HOROVOD_BACKEND": "cpu=mpi",
        "HOROVOD_BACKEND_PATH_MPI": path,
        "HOROVOD_FUSION_THRESHOLD": "1",
    }
    done = by_horovodrun.run("-np", 2, *program_words(mpirun_ranks.report_variables), env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        "horovodrun: HOROVOD_BACKEND asks for the backend 'mpi': mpirun starts the processes" in done.stderr
    )
    assert len(re.findall(r"3.0 [01] 2 None 1 0$", done.stdout, re.M)) == 2, done.stdout
    done = by_horovodrun.run("--gloo", "-np", 2, *program_words(mpirun_ranks.report_variables), env=variables)
    assert done.returncode == 2
    assert "each would be alone in its MPI" in done.stderr
