"""hvd.backend_report(): rows for programs, a table for people, before init() and after."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import hvd_core
import report_program
from golden_texts import golden
from harness.frameworks import python_of
from harness.installed import need
from hvd_core.backends._selection.plan import BackendRow, ServedRow, report
from launchers import Launcher, program_words
from listed_backends import ECCL, MPI, SHM, TCP, TWO_HOSTS, TWO_HOSTS_BY_MPI, ListedBackends, plan


def answers(backend, operation, dtype):
    """The answers of the listed backends' tables: eccl has 64-bit types for movement only, mpi lacks alltoall."""
    wide = "64" in dtype and operation in ("allreduce", "reducescatter")
    lacks = (backend.name == "eccl" and wide) or (backend.name == "mpi" and operation == "alltoall")
    return {"support": 0 if lacks else 1, "score": {"eccl": 80, "mpi": 50}.get(backend.name, 100)}


def test_the_table_of_everything():
    made = plan(SHM, TCP, MPI, ECCL, value="eccl,gcu.broadcast=shm,cpu.alltoall=mpi", world=TWO_HOSTS)
    rows = report(made, answers)
    golden("report", str(rows))
    assert rows.note == made.note
    assert [r.support for r in rows if r.operation == "alltoall"] == ["EMULATED", "NATIVE"]
    allreduce = next(r for r in rows if r.operation == "allreduce" and r.device == "gcu")
    assert allreduce == BackendRow(
        operation="allreduce",
        device="gcu",
        backend="eccl",
        version="0.3.1",
        origin="hvd-backend-eccl 0.3.1",
        vendor_lib="libeccl 3.1.0",
        support="NATIVE",
        score=80,
        source="HOROVOD_BACKEND",
        emulated=("int64", "float64", "uint64"),
    )


def test_a_backend_of_the_launchers_that_is_not_used():
    installed = ListedBackends(SHM, TCP)
    installed.unused_between = (
        "openmpi started this job, but backend 'mpi' is installed but unavailable here: no libmpi"
    )
    made = report(plan(installed=installed, world=TWO_HOSTS_BY_MPI), answers)
    assert made.unused_between == installed.unused_between
    golden("report_unused_between", str(made))


def test_before_init_in_both_faces():
    need("torch")
    words = program_words(report_program.check_before_init, python=[python_of("torch")])
    done = subprocess.run(words, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr


def test_the_tables_answer_for_themselves():
    """The embedded backends claim what tests/backends/host shows them to do: everything, on host memory."""
    for found in hvd_core.backend_report():
        if found.device != "cpu":
            continue  # of a plugin that is installed beside them
        assert found.support == "NATIVE" and found.emulated == (), found


def test_the_log_of_rank_0(tmp_path):
    launcher = Launcher(tmp_path)
    env = {"HOROVOD_LOG_LEVEL": "info", "HOROVOD_LOG_HIDE_TIME": "1", "HOROVOD_BACKEND": "tcp"}
    done = launcher.python(2, "import hvd_core as hvd; hvd.init()", env=env)
    launcher.clean_up()
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if " cpu " in line or "device types" in line]
    assert len(lines) == 7 and all(line.startswith("[0]<stderr>:[0] horovod INFO: ") for line in lines)
    golden("report_in_the_log", "\n".join(re.sub(r".*INFO: ", "", line) for line in lines))


def test_what_init_would_raise_is_raised():
    code = "import hvd_core; hvd_core.backend_report()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"HOROVOD_BACKEND": "smh", "PYTHONPATH": str(Path(hvd_core.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert "BackendNotInstalled: horovod: backend 'smh' (from HOROVOD_BACKEND)" in done.stderr


@pytest.mark.parametrize(
    "support, how, backend, says",
    [
        ("NATIVE", "", "eccl", "NATIVE, over eccl"),
        (
            "EMULATED",
            "allgather + local reduction",
            "eccl",
            "EMULATED by allgather + local reduction, over eccl",
        ),
        ("STAGED", "through host memory and tcp", "tcp", "STAGED through host memory and tcp, over tcp"),
    ],
)
def test_how_operations_were_served(support, how, backend, says):
    made = report(plan(SHM, TCP), answers)
    made.served = (ServedRow("allreduce", "gcu", "float32", "sum", backend, support, how),)
    assert str(made).splitlines()[-1] == f"  allreduce of float32 (sum) on gcu: {says}"


def test_what_libraries_tell_of_themselves_as_they_run():
    told = {("mpi", "threads"): "multiple", ("mpi", "device_memory"): "cuda", ("shm", "threads"): None}
    made = report(plan(SHM, TCP, MPI, world=TWO_HOSTS_BY_MPI), answers, fact=lambda *what: told.get(what))
    assert made.facts == {"mpi": {"threads": "multiple", "device_memory": "cuda"}}
    assert str(made).splitlines()[-1] == "mpi: threads multiple, device memory cuda"
    assert report(plan(SHM, TCP), answers).facts == {}
