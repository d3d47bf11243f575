"""Fixtures of the kit's own tests: backends' libraries, and a shim that puts a fault into one of them."""

import sys
from pathlib import Path

import pytest

import kit_libraries

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE.parents[1] / "backends/host"))  # libraries.py

from libraries import find_library  # noqa: E402


@pytest.fixture(scope="session")
def shim():
    return kit_libraries.shim()


@pytest.fixture(scope="session")
def fake_sync_library():
    return kit_libraries.fake_sync()


@pytest.fixture(scope="session")
def minimal_library():
    return kit_libraries.minimal()


@pytest.fixture(scope="session")
def library_of(fake_sync_library):
    """library_of(name): the path of a backend's library."""

    def find(name):
        if name == "fake_sync":
            return fake_sync_library
        if name == "eccl_stub":
            path = ROOT / "backends/eccl_stub/src/hvd_backend_eccl_stub/lib/libhvd_backend_eccl_stub.so"
            assert path.is_file(), f"{path} is not built; the developer build and `make` build it"
            return path
        return find_library(name)

    return find
