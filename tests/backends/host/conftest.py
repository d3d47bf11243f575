"""Fixtures of the backends' tests. A test that asks for `ranks` or `library` runs once per backend; a module whose
tests are about one of them overrides the fixture `backend_name`.
"""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE))

from libraries import find_library  # noqa: E402


@pytest.fixture(params=["shm", "tcp"])
def backend_name(request):
    return request.param


@pytest.fixture
def library(backend_name):
    return find_library(backend_name)


@pytest.fixture
def ranks(library, tmp_path):
    """ranks(size, body, *args, threads=False, alone=False, ...): see ranks.py.

    Variables of the ranks go by `env`: those of monkeypatch do not reach a living rank.
    alone: in processes of this call, as for ranks that are lost or enter another host.
    """
    from ranks import in_living_processes, in_processes, in_threads

    def run(size, body, *args, threads=False, alone=False, **options):
        new = alone or "lost" in options or "enter" in options
        start = in_threads if threads else in_processes if new else in_living_processes
        return start(library, tmp_path, size, body, *args, **options)

    return run
