"""What all tests share: a clean environment, the reasons for which marked tests are skipped, and a header
that says what was tested. Time limits are pytest-timeout's (300 s unless a test says otherwise); the markers
are listed in pyproject.toml.
"""

import gc
import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from namespaces import hosts  # noqa: F401 (a fixture)

from harness import environment, fork_servers, pool

# Variables by which a rank learns who it is. Left over from an outer launcher they would turn every test
# process into a rank of that job.
_IDENTITY_PREFIXES = ("HOROVOD_", "OMPI_", "PMIX_", "PMI_", "MPI_LOCAL", "SLURM_", "TORCHELASTIC_")
_IDENTITY_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

_HERE = Path(__file__).parent
# The two ends from which `make test` works; see pytest_xdist_make_scheduler(). Folders that are in neither come between.
# Folders that one lane has as a whole come before those that are shared file by file, so that all lanes end together.
_MOSTLY_BUSY = (
    *("jax", "tensorflow", "keras", "torch", "mxnet", "frameworks"),
    *("mpi_backend", "conformance", "benchmarks", "abi", "eccl"),
    *("examples", "nccl_backend", "engine", "backends"),
)
_MOSTLY_WAITING = (
    *("discovery", "selection", "cli", "runner", "subsets", "reports"),
    *("bootstrap", "mpirun", "packaging", "hosts"),
    *("waiting files", "gloo_backend", "observe", "slurm", "kubernetes", "notebook", "chaos"),
)
# Files of other folders that mostly wait, for limits of time. Near the end of the session too few lanes would be busy.
_WAITING_FILES = (
    *("engine/test_failures.py", "engine/test_hanging_abort.py", "engine/test_hanging_backend.py"),
    *("backends/test_tcp_hosts.py", "backends/test_tcp_failure.py"),
    *("runner/test_runner_processes.py", "runner/test_elastic_troubles.py"),
)
# Of the folders at the ends, those whose files may be in different lanes: they share nothing but living ranks.
_BY_FILE = ("frameworks", "engine", "backends", "nccl_backend", "runner", "hosts")
# Of these a lane has all tests that share a living job, as starting the job costs seconds; see _living_job().
_BY_JOB = ("tensorflow", "keras", "torch", "jax", "mxnet")
# Of the examples' tests, those that use these jobs too.
_EXAMPLES_BY_JOB = ("/test_tf_examples.py", "/test_mxnet_digits.py", "/test_jax_digits.py")

# Where build_programs.py has not run, the first test of these folders waits for a compiler.
_WITH_A_COMPILER = ("engine", "frontend", "abi", "eccl", "conformance", "nccl_backend")


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
    fork_servers.begin_session()
    environment.remember()
    if hasattr(config, "workerinput"):  # a lane of pytest-xdist
        gc.disable()  # until pytest_collection_finish()


def pytest_unconfigure(config):
    pool.close_all()
    fork_servers.end_session()


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


def _folder(path):
    return path.split("/")[1] if path.startswith(f"{_HERE.name}/") and path.count("/") > 1 else ""


def _place(nodeid):
    """Where a test comes in the order of all tests."""
    path = nodeid.partition("::")[0]
    folder = "waiting files" if path.endswith(_WAITING_FILES) else _folder(path)
    if folder in _MOSTLY_BUSY:
        return _MOSTLY_BUSY.index(folder)
    return len(_MOSTLY_BUSY) + (_MOSTLY_WAITING.index(folder) + 1 if folder in _MOSTLY_WAITING else 0)


def _living_job(nodeid):
    """The living job with a framework that a test of the folders _BY_JOB needs: "torch on 2 ranks". The identifiers of
    tests contain the number of ranks and the differences in the environment; without a number it is 2."""
    path, _, case = nodeid.partition("::")
    for own in ("test_tf_device", "alone-", "synchronous", "random-", "address"):
        if own in nodeid:
            return f"{path} {own}"
    if "tensorflow1" in nodeid or "tensorflow_1" in nodeid:
        return "tensorflow 1 on 2 ranks"
    for framework in ("mxnet", "jax"):
        if framework in nodeid:
            return framework
    torch = (
        _folder(path) == "torch"
        or "[torch-" in case
        or case == "test_keras_trains_on_torch"
        or path.endswith("/test_keras_initial_weights.py")
    )
    ranks = re.search(r"[\[-]([1-9])-", case)
    return f"{'torch' if torch else 'tensorflow'} on {ranks[1] if ranks else 2} ranks"


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config, log):
    """`make test` runs four lanes side by side on two cores. Half of them begin with the tests that keep the processors
    busy, the others at the end, with those that mostly wait, for timeouts and for programs that start; they meet
    somewhere between.

    A folder at the ends is in one lane as a whole unless it is in _BY_FILE or _BY_JOB; the folders between go file by
    file.
    """
    from xdist.scheduler import LoadScopeScheduling

    class TwoEnds(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            path = nodeid.partition("::")[0]
            folder = _folder(path)
            if folder in _BY_JOB or path.endswith(_EXAMPLES_BY_JOB):
                return _living_job(nodeid)
            whole = folder in _MOSTLY_BUSY + _MOSTLY_WAITING and folder not in _BY_FILE
            return folder if whole else path

        def _assign_work_unit(self, node):
            if self.nodes.index(node) % 2:
                self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
            super()._assign_work_unit(node)

    config.option.loadscopereorder = False
    return TwoEnds(config, log)


def pytest_collection_modifyitems(config, items):
    items.sort(key=lambda item: _place(item.nodeid))
    for item in items:
        if _folder(item.nodeid) in _WITH_A_COMPILER and not item.get_closest_marker("timeout"):
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
