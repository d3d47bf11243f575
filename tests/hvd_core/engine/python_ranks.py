"""What the tests of backends written in Python share: real ranks behind the C table, without the engine.

The driver of the table is that of tests/backends/host.
"""

import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "backends/host"))

import abi_ctypes as abi
import reference
from hvd_core.backends import register_python_backend
from hvd_core.backends._discovery import registry
from ranks import in_processes, in_threads
from table_driver import BackendFailure

__all__ = ["abi", "failure", "on_ranks", "reference", "registry_as_it_was"]


@pytest.fixture(autouse=True, scope="module")
def registry_as_it_was():
    """Other tests of this process ask what is installed."""
    added = list(registry._added)
    yield
    registry._added[:] = added


def on_ranks(cls, size, body, *args, threads=False, **options):
    """body(comm, *args) on ranks that are forked processes, or threads of this one."""
    registered = register_python_backend(cls)

    class PathWhereAsked:  # forked ranks start threads of their own
        def __str__(self):
            return registered.path

    run = in_threads if threads else in_processes
    with tempfile.TemporaryDirectory() as store:
        return run(PathWhereAsked(), store, size, body, *args, **options)


def failure(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except BackendFailure as error:
        return error
    raise AssertionError("the call was expected to fail")
