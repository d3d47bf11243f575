"""Jobs over the backend mpi: the library built with the checkout, announced as its wheel does, under real mpiruns."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hvd_core
from launchers import mpi_library

PACKAGES = Path(hvd_core.__file__).resolve().parents[1]
PACKAGE = PACKAGES / "backends" / "mpi" / "src" / "hvd_backend_mpi"


@pytest.fixture(scope="session")
def announced(tmp_path_factory):
    """A folder with the backend as pip would leave it."""
    assert (PACKAGE / "lib" / "libhvd_backend_mpi.so").is_file(), "backends/mpi is not built (cmake --build)"
    site = tmp_path_factory.mktemp("site")
    (site / "hvd_backend_mpi").symlink_to(PACKAGE)
    metadata = site / "hvd_backend_mpi-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: hvd-backend-mpi\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text("[hvd_core.backends]\nmpi = hvd_backend_mpi:describe\n")
    return site


class MpiJob:
    """Starts jobs with one MPI. ``library``: the path of its library."""

    def __init__(self, mpirun, site):
        self.mpirun, self.site = mpirun, site
        self.kind = "Open MPI" if len(mpirun) > 1 else "MPICH"
        self.library = mpi_library(mpirun)

    def environment(self, **variables):
        path = os.pathsep.join([str(self.site), str(PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])])
        # mpi4py takes the first MPI that it finds, unless told.
        return {
            **os.environ,
            "PYTHONPATH": path,
            "HOROVOD_BACKEND": "mpi",
            "MPI4PY_LIBMPI": self.library,
        } | variables

    @staticmethod
    def words(name):
        """The command of a rank that executes a function of mpi_ranks.py."""
        return [sys.executable, Path(__file__).with_name("mpi_ranks.py"), name]

    def start(self, words, size=2, options=(), **variables):
        """A finished job of the words behind mpirun's own."""
        command = list(map(str, [*self.mpirun, *options, "-np", size, *words]))
        return subprocess.run(
            command, env=self.environment(**variables), capture_output=True, text=True, timeout=200
        )

    def run(self, name, size=2, **variables):
        """A finished job of a function of mpi_ranks.py. It succeeds, and each rank's last line is "done"."""
        return self._successful(self.start(self.words(name), size, **variables), size)

    @staticmethod
    def _successful(done, size):
        assert done.returncode == 0 and done.stdout.count("done") == size, done.stdout + done.stderr
        return done


@pytest.fixture
def mpi_job(mpirun, announced):
    return MpiJob(mpirun, announced)
