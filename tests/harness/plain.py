"""Programs without a framework that start no interpreter each: the ranks of tests whose subject is their work.
An interpreter that imports them and ends costs 0.15 s of processor time, a fork and its end 0.01 s; a job of two ranks
costs 0.6 s with interpreters, 0.17 s with forks.

A child has hvd_core and the parts of horovodrun already. Interpreters of their own are for programs whose start, imports
or end are the subject, or whose variables hvd_core reads at its import; for those whose process is looked at: its
parent, its session, its limits, its stop; for ranks of mpirun, which find their job and their library of MPI by their
parents; and where the order of sets is to differ from rank to rank, see fork_server.py.
"""

import importlib.util

from . import environment, fork_servers

# What hvd_core, horovodrun and the tests' modules import of others, without a framework.
_MODULES = (
    *("numpy", "numpy.random", "stevedore", "packaging.requirements", "yaml", "cloudpickle"),
    *("encodings.idna", "pytest", "argparse", "base64", "bisect", "bz2", "calendar"),
    *("csv", "ctypes", "dataclasses", "datetime", "difflib", "email.parser", "faulthandler", "glob"),
    *("hashlib", "hmac", "importlib.metadata", "importlib.resources", "inspect", "ipaddress", "json"),
    *("locale", "logging", "multiprocessing.connection", "pathlib", "pickle", "platform", "queue"),
    *("random", "resource", "secrets", "selectors", "shlex", "shutil", "signal", "socket", "string"),
    *("subprocess", "sysconfig", "tempfile", "textwrap", "threading", "tomllib", "traceback", "typing"),
    *("unicodedata", "urllib.parse", "uuid", "zipfile"),
)
# What a rank has imported after its first init() and its first operation, and horovodrun when it starts a job.
_OF_OURS = (
    *("hvd_core", "hvd_core._core", "hvd_core.backends._selection.job", "hvd_core.numpy_api"),
    *("hvd_core._observe.watch.start", "hvd_core.flight_records", "hvd_core._observe.settings"),
    *("hvd_core._base.listener", "hvd_core._bootstrap.hosts", "hvd_core._bootstrap.links"),
    *("hvd_core._bootstrap.launchers.process", "hvd_core._config.plugins_toml", "horovod._runner.job"),
    *("horovod._runner.arguments", "horovod._runner.run_api", "horovod._runner.elastic_driver"),
)


def python() -> list[str]:
    """The words that stand for this interpreter in a command: those of a fork server's client."""
    # Without a built engine, the tests that need none run all the same.
    built = importlib.util.find_spec("hvd_core._core") is not None
    return fork_servers.interpreter((*_MODULES, *(_OF_OURS if built else ())), environment.base())


def executable() -> str:
    """The path of a program that stands for python(), for --remote-python."""
    return fork_servers.script(python())


def horovodrun(ranks: int, *options: str) -> list[str]:
    """The words of horovodrun and of python(), in front of a program that is to run on `ranks` ranks."""
    return [*python(), "-m", "horovod.runner.launch", "-np", str(ranks), *options, *python()]
