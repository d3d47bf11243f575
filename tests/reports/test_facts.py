"""The facts that backends report about their libraries: NCCL's version, MPI's threads, a line in the report."""

from pathlib import Path

import pytest
from compiled import compiled, cxx

import hvd_core
from announced import backend, python

HERE = Path(__file__).parent
INCLUDE = Path(hvd_core.__file__).parent / "include"


@pytest.fixture(scope="module", name="compiled")
def compiled_backend():
    """compiled(name): telling.cc as the library of a backend of that name."""

    def make(name):
        flags = ["-std=c++17", "-O0", "-fPIC", "-shared", "-fvisibility=hidden", f"-DNAME={name}"]
        return compiled(f"lib{name}.so", [cxx(), *flags], [HERE / "telling.cc"], [INCLUDE])

    return make


NCCL = """
    from horovod.common.basics import HorovodBasics
    hvd = HorovodBasics()
    print(repr(hvd.nccl_built()), hvd.nccl_built() == hvd.nccl_built(), hvd.is_initialized())
"""


def test_nccl_built_is_its_version_code(site, compiled):
    backend(site, "nccl", devices=("cuda",), library=compiled("nccl"))
    assert python(NCCL, site, TELL_version_code="21903").stdout.split() == ["21903", "True", "False"]
    assert python(NCCL, site).stdout.split()[0] == "0", "the backend finds no library to tell of"
    backend(site, "nccl", devices=("cuda",), library="/nowhere/libnccl.so")
    assert python(NCCL, site).stdout.split()[0] == "0"


MPI = """
    import os
    import hvd_core
    from horovod.common.basics import HorovodBasics
    hvd = HorovodBasics()
    hvd.init(backend="cpu=mpi")
    print(hvd.mpi_threads_supported(), hvd.mpi_enabled())
    print("told:", str(hvd_core.backend_report()).splitlines()[-1])
    if os.fork() == 0:  # a copy of the engine is left alone
        os._exit(hvd.mpi_threads_supported())
    assert os.wait()[1] == 0
    hvd.shutdown()
"""


def test_mpi_threads_are_those_of_the_running_library(site, compiled):
    backend(site, "mpi", library=compiled("mpi"))
    said = python(MPI, site, TELL_threads="multiple", TELL_device_memory="cuda", HOROVOD_LOG_LEVEL="info")
    assert said.stdout.splitlines() == ["True True", "told: mpi: threads multiple, device memory cuda"]
    assert said.stderr.count("horovod INFO: mpi: threads multiple, device memory cuda") == 1
    assert python(MPI, site, TELL_threads="serialized").stdout.splitlines()[0] == "False True"
    assert python(MPI, site).stdout.splitlines()[0] == "False True", "it does not know"
