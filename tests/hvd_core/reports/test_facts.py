"""The facts that backends report about their libraries: NCCL's version, MPI's threads, a line in the report."""

from pathlib import Path

import pytest

import hvd_core
from announced import backend, python
from compiled import compiled, cxx
from report_programs import nccl, threads_of_mpi

HERE = Path(__file__).parent
INCLUDE = Path(hvd_core.__file__).parent / "include"


@pytest.fixture(scope="module", name="compiled")
def compiled_backend():
    """compiled(name): telling.cc as the library of a backend of that name."""

    def make(name):
        flags = ["-std=c++17", "-O0", "-fPIC", "-shared", "-fvisibility=hidden", f"-DNAME={name}"]
        return compiled(f"lib{name}.so", [cxx(), *flags], [HERE / "telling.cc"], [INCLUDE])

    return make


def test_nccl_built_is_its_version_code(site, compiled):
    backend(site, "nccl", devices=("cuda",), library=compiled("nccl"))
    assert python(nccl, site, TELL_version_code="21903").stdout.split() == ["21903", "True", "False"]
    assert python(nccl, site).stdout.split()[0] == "0", "the backend finds no library to tell of"
    backend(site, "nccl", devices=("cuda",), library="/nowhere/libnccl.so")
    assert python(nccl, site).stdout.split()[0] == "0"


def test_mpi_threads_are_those_of_the_running_library(site, compiled):
    backend(site, "mpi", library=compiled("mpi"))
    told = {"TELL_threads": "multiple", "TELL_device_memory": "cuda", "HOROVOD_LOG_LEVEL": "info"}
    said = python(threads_of_mpi, site, **told)
    assert said.stdout.splitlines() == ["True True", "told: mpi: threads multiple, device memory cuda"]
    assert said.stderr.count("horovod INFO: mpi: threads multiple, device memory cuda") == 1
    assert python(threads_of_mpi, site, TELL_threads="serialized").stdout.splitlines()[0] == "False True"
    assert python(threads_of_mpi, site).stdout.splitlines()[0] == "False True", "it does not know"
