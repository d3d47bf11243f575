"""mpi_built(), nccl_built(), mpi_enabled(), ...: the installed backends, and those that the running job uses."""

import json

from announced import IN_PYTHON, backend, python
from report_programs import ask_without_a_job, built, enabled, import_mpi4py

QUESTIONS = ("mpi", "gloo", "nccl", "ddl", "ccl", "cuda", "rocm")


def asked(site, **variables):
    return json.loads(python(built, site, *QUESTIONS, **variables).stdout)


def mpi4py_works(site):
    try:
        python(import_mpi4py, site)
        return True
    except AssertionError:
        return False


def test_without_wheels_jobs_need_no_mpi_and_the_types_are_the_originals(site):
    said, types = asked(site)
    assert said == {
        "mpi": mpi4py_works(site),
        "gloo": True,
        "nccl": 0,
        "ddl": False,
        "ccl": False,
        "cuda": False,
        "rocm": False,
    }
    assert types == {**dict.fromkeys(QUESTIONS, "bool"), "nccl": "int"}


def test_mpi_is_built_where_mpi4py_finds_a_library(site, tmp_path):
    nowhere = {"LD_LIBRARY_PATH": "", "MPI4PY_LIBMPI": str(tmp_path / "libmpi.so")}
    asked_for = (
        "from hvd_core._bootstrap.rendezvous.mpi4py_support import can_be_loaded; "
        "import os, sys; print(can_be_loaded(os.environ))"
    )
    ends = f"{asked_for[:-1]}, 'mpi4py' in sys.modules)"
    before = python(ends, site, **nowhere).stdout.split()
    (tmp_path / "libmpi.so").touch()
    assert python(ends, site, **nowhere).stdout.split() == ["True", "False"], "the question loads nothing"
    assert before[1] == "False"


def test_built_is_installed_and_describes_itself(site):
    backend(site, "mpi", devices=("cpu", "cuda", "rocm"), probe='return Unavailable("no libmpi")')
    backend(site, "ddl", code="raise ImportError('half installed')")
    backend(site, "ccl")
    backend(site, "acme", devices=("rocm",), provides=("device", "comm"))
    said, _ = asked(site)
    assert said["mpi"] and said["ccl"] and not said["ddl"]
    assert said["rocm"], "acme opens such devices"
    assert not said["cuda"], "mpi reads that memory, but no backend opens the devices"


def test_asking_imports_what_is_asked_about_and_probes_nothing(site):
    backend(site, "mpi", probe='print("probed")')
    backend(site, "acme", code="print('imported acme')\n" + "raise SystemExit")
    assert python(ask_without_a_job, site).stdout == ""


def test_a_library_without_a_wheel_is_built_when_it_is_there(site, tmp_path):
    library = tmp_path / "libx.so"
    assert not asked(site, HOROVOD_BACKEND_PATH_DDL=str(library))[0]["ddl"]
    library.touch()
    assert asked(site, HOROVOD_BACKEND_PATH_DDL=str(library))[0]["ddl"]


NOT_ENABLED = (
    "Horovod MPI is not enabled; Please make sure it's installed and enabled. (No launcher of MPI has started this "
    "process: use mpirun, or horovodrun --mpi.)"
)


def test_enabled_is_what_the_job_uses(site):
    """One of the two is true in every job: programs ask gloo_enabled() to know whether there is no MPI."""
    backend(site, "mpi", code=IN_PYTHON)
    said = python(enabled, site).stdout.splitlines()
    assert said == ["False True", NOT_ENABLED, "False False"], "installed, and not used"
    assert python(enabled, site, HOROVOD_BACKEND="cpu.allgather=mpi").stdout.splitlines()[0] == "True False"
