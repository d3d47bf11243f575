"""What all tests share: a clean environment, the reasons for which marked tests are skipped, and a header
that says what was tested. Time limits are pytest-timeout's (300 s unless a test says otherwise); the markers
are listed in pyproject.toml.
"""

import gc
import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness import environment
from namespaces import hosts  # noqa: F401 (a fixture)

# Variables by which a rank learns who it is. Left over from an outer launcher they would turn every test
# process into a rank of that job.
_IDENTITY_PREFIXES = ("HOROVOD_", "OMPI_", "PMIX_", "PMI_", "MPI_LOCAL", "SLURM_", "TORCHELASTIC_")
_IDENTITY_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

pytest_plugins = ("harness.plugin",)
# Where build_programs.py has not run, the first test of these folders waits for a compiler.
_WITH_A_COMPILER = ("engine", "frontend", "abi", "eccl_stub", "conformance", "nccl")


def pytest_configure(config):
    for name in list(os.environ):
        if name.startswith(_IDENTITY_PREFIXES) or name in _IDENTITY_NAMES:
            del os.environ[name]
    # NumPy's library starts a thread for each core, which costs every program, and every fork, a tenth of a second.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    # Tests say themselves how their programs write: unbuffered, Python writes a line in pieces, which mpirun mixes.
    os.environ.pop("PYTHONUNBUFFERED", None)
    # Workers of pytest-xdist have the width of a terminal in their environment; what the tests start has no terminal.
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    # Several ranks share few cores here; without this each would start a thread per core.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # A program may set its number of threads itself. Idle threads sleep then, as the cores have other work.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # A shell's background job ignores SIGINT and SIGQUIT, under nohup SIGHUP, and so would all that the tests start.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, usual)
    environment.remember()
    if hasattr(config, "workerinput"):  # a lane of pytest-xdist
        gc.disable()  # until pytest_collection_finish()


def pytest_collection_finish(session):
    # What thousands of collected tests have made lives as long as the session: the garbage collector need not look at
    # it, now or later.
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_report_header(config):
    versions = []
    for distribution in ("hvd-core", "numpy", "torch", "tensorflow-cpu", "keras"):
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
    for item in items:
        if item.path.parent.name in _WITH_A_COMPILER and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(400))
    marked = [item for item in items if item.get_closest_marker("netns")]
    reason = _why_no_namespaces() if marked else None
    if reason:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


def _find_mpirun(kind):
    """Path of the mpirun of "openmpi" or "mpich": that of the prefix in HVD_TEST_OPENMPI or HVD_TEST_MPICH, what `make
    test` put aside, else the machine's; or None."""
    told = os.environ.get(f"HVD_TEST_{kind.upper()}")
    if told:
        return os.path.join(told, "bin", "mpirun")
    own = Path(sys.prefix) / kind / "bin" / "mpirun"
    if own.exists():
        return str(own)
    for name in (f"mpirun.{kind}", "mpirun"):
        path = shutil.which(name)
        if path:
            said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=100).stdout
            if {"openmpi": "Open MPI", "mpich": "HYDRA"}[kind] in said:
                return path
    return None


@pytest.fixture(params=["openmpi", "mpich"])
def mpirun(request, monkeypatch, tmp_path_factory):
    """The command [mpirun, its options] of each MPI in turn; add "-np", N and a program. Skips if missing."""
    path = _find_mpirun(request.param)
    if path is None:
        pytest.skip(f"no mpirun of {request.param} was found beside the interpreter or on the PATH")
    # An mpirun that a test kills leaves its own folder behind. Open MPI 5 does not start where there is one of its
    # process id: "The PMIx server's listener thread failed to start".
    monkeypatch.setenv("PRTE_MCA_prte_tmpdir_base", str(tmp_path_factory.mktemp("mpirun")))
    if request.param == "mpich":
        return [path]
    # A container is root and has few cores; Open MPI refuses both unless told. Its ranks would poll without a pause,
    # and have the cores to themselves only if nothing else is tested.
    return [path, "--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
