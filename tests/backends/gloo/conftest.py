"""What the tests of the gloo backend share: its library, and ranks that call it through its table."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "backends/host"))


@pytest.fixture(scope="session")
def gloo_library():
    """Path of the backend's library; skips where it was not built."""
    path = (
        HERE.parents[2] / "backends" / "gloo" / "src" / "hvd_backend_gloo" / "lib" / "libhvd_backend_gloo.so"
    )
    if not path.is_file():
        pytest.skip("the gloo backend is not built: this machine has no libgloo-dev, and could not get it")
    return path


@pytest.fixture
def gloo_ranks(gloo_library, tmp_path):
    """gloo_ranks(size, body, *args, ...): see ranks.py in tests/backends/host."""
    from ranks import in_processes, in_threads

    def run(size, body, *args, threads=False, **options):
        return (in_threads if threads else in_processes)(gloo_library, tmp_path, size, body, *args, **options)

    return run
