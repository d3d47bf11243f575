"""The backend nccl as its wheel announces it, built with the checkout. None of it needs a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hvd_core

PACKAGES = Path(hvd_core.__file__).resolve().parents[1]
PACKAGE = PACKAGES / "backends" / "nccl" / "src" / "hvd_backend_nccl"


@pytest.fixture(scope="session")
def nccl_library():
    """The backend's own shared object."""
    library = PACKAGE / "lib" / "libhvd_backend_nccl.so"
    assert library.is_file(), "backends/nccl is not built (cmake --build)"
    return library


@pytest.fixture(scope="session")
def nccl_site(nccl_library, tmp_path_factory):
    """A folder with the backend as pip would leave it."""
    site = tmp_path_factory.mktemp("site")
    (site / "hvd_backend_nccl").symlink_to(PACKAGE)
    metadata = site / "hvd_backend_nccl-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: hvd-backend-nccl\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text("[hvd_core.backends]\nnccl = hvd_backend_nccl:describe\n")
    return site


@pytest.fixture
def run_python(nccl_site):
    """run_python(words, **variables): a finished Python that sees the backend, outputs as text.

    python: the words in front, in place of the interpreter.
    """

    def run(words, python=(sys.executable,), **variables):
        path = os.pathsep.join([str(nccl_site), str(PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])])
        return subprocess.run(
            [*python, *map(str, words)],
            env={**os.environ, "PYTHONPATH": path, **variables},
            cwd=nccl_site.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=280,
        )

    return run
