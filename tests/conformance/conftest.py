"""What the kit's own tests stand on: backends' libraries, and a shim that spoils one of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "backends"))  # libraries.py

from libraries import find_library  # noqa: E402


def compile_library(target: Path, *sources: Path) -> Path:
    """A shared object against the public headers, with warnings as errors."""
    compiler = os.environ.get("CXX", "c++")
    flags = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden")
    include = ROOT / "hvd_core" / "include"
    command = [
        compiler,
        *flags,
        "-I",
        str(include),
        *map(str, sources),
        "-o",
        str(target),
        "-pthread",
        "-ldl",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="session")
def shim(tmp_path_factory):
    """The library that spoils another one; see mutants/shim.cc."""
    folder = tmp_path_factory.mktemp("mutants")
    return compile_library(folder / "libshim.so", *sorted((HERE / "mutants").glob("*.cc")))


@pytest.fixture(scope="session")
def far_library(tmp_path_factory):
    """The backend with only a device table, whose memory the host must not touch."""
    source = ROOT / "tests" / "backends" / "far_device" / "far.cc"
    return compile_library(tmp_path_factory.mktemp("far") / "libfar.so", source)


@pytest.fixture(scope="session")
def poor_library(tmp_path_factory):
    """The backend with three collectives of one type."""
    source = ROOT / "tests" / "backends" / "poor" / "poor.cc"
    return compile_library(tmp_path_factory.mktemp("poor") / "libpoor.so", source)


@pytest.fixture(scope="session")
def library_of(far_library):
    """library_of(name): the path of a backend's library."""

    def find(name):
        if name == "far":
            return far_library
        if name == "eccl_stub":
            path = ROOT / "backends/eccl_stub/src/hvd_backend_eccl_stub/lib/libhvd_backend_eccl_stub.so"
            assert path.is_file(), f"{path} is not built; the developer build and `make` build it"
            return path
        return find_library(name)

    return find
