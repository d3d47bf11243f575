"""What all tests share: a clean environment, the reasons for which marked tests are skipped, and a header
that says what was tested. Time limits are pytest-timeout's (120 s unless a test says otherwise); the markers
are listed in pyproject.toml.
"""

import importlib.metadata
import os
import shutil
import subprocess

import pytest

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


def _why_no_mpi():
    return None if shutil.which("mpirun") else "mpirun is not on the PATH"


def pytest_collection_modifyitems(config, items):
    for marker, find_reason in (("netns", _why_no_namespaces), ("mpi", _why_no_mpi)):
        marked = [item for item in items if item.get_closest_marker(marker)]
        reason = find_reason() if marked else None
        if reason:
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))
