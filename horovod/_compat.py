"""The names of the original Horovod that hvd-core does not have, each with the text that names its replacement.

`import horovod` appends `MissingModules` to `sys.meta_path`. It is asked only for modules that no other finder has
found, so it costs nothing where imports succeed. Importing a module of the table below raises an ImportError that says
more than "No module named ...". When a part arrives, its row is deleted.

Programs also import modules of the original's launcher that exist here as short files of their own, so that type
checkers see them: horovod/runner/common/README.md lists them. `missing_attribute` serves the names that these lack.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # importlib.abc is slow to import

_STORE = (
    "Ranks meet at the launcher's authenticated store. To start ranks, call horovod.run(), or run horovodrun with "
    "--remote-shell for other ways than ssh."
)
_ELASTIC = "horovodrun drives elastic jobs: call it with --min-np or --host-discovery-script."

_REPLACEMENTS = {
    "horovod.spark.lightning": "The estimator for PyTorch Lightning is left out: the original's needs Lightning 1.5 "
    "and petastorm. Call Lightning in a function of horovod.spark.run().",
    "horovod.spark.tensorflow": "The original's service for tf.data on Spark is not there. Use horovod.spark.run(), "
    "and tf.data.experimental.service.",
    "horovod.ray": "Ray is not supported yet. Start the job on the hosts of the cluster with horovodrun or "
    "horovod.run().",
    "horovod.data": "The data loaders of the original are not there yet. Use those of the framework, and give each "
    "rank its part by hvd.rank() and hvd.size().",
    "horovod.tensorflow.data": "The original's service for tf.data is not there yet. Use TensorFlow's own, "
    "tf.data.experimental.service, or give each rank its part by hvd.rank() and hvd.size().",
    "horovod.runner.http": f"There is no rendezvous over HTTP, which would be without authentication. {_STORE}",
    "horovod.runner.driver": f"There is no driver service. {_STORE}",
    "horovod.runner.task": f"There is no task service. {_STORE}",
    "horovod.runner.common.service": f"There are no driver and task services. {_STORE}",
    "horovod.runner.elastic.driver": f"There is no driver that a program starts. {_ELASTIC}",
    "horovod.runner.elastic.registration": f"There is no registry of workers. {_ELASTIC}",
    "horovod.runner.elastic.rendezvous": f"There is no rendezvous over HTTP. {_ELASTIC}",
    "horovod.runner.elastic.settings": f"There are no settings of a driver. {_ELASTIC}",
    "horovod.runner.elastic.worker": f"There is no service for notifications in workers. {_ELASTIC}",
    "horovod.runner.js_run": "Starting the ranks with jsrun is not supported. Use horovodrun --mpi, or mpirun.",
    "horovod.runner.gloo_run.RendezvousServer": f"There is no rendezvous over HTTP. {_STORE}",
    "horovod.runner.gloo_run.gloo_run": _STORE,
    "horovod.runner.gloo_run.gloo_run_elastic": _ELASTIC,
    "horovod.runner.gloo_run.launch_gloo": _STORE,
    "horovod.runner.gloo_run.launch_gloo_elastic": _ELASTIC,
    "horovod.runner.mpi_run.mpi_run": "Call horovod.run(..., use_mpi=True), or run horovodrun --mpi.",
}


def _error(name: str) -> ImportError:
    from hvd_core.version import __version__  # late: `import horovod` does not need hvd_core

    return ImportError(f"{name} is not part of hvd-core {__version__}. {_REPLACEMENTS[name]}", name=name)


class MissingModules(Loader):
    """A finder for `sys.meta_path`, and the loader of what it finds: modules whose import raises an ImportError."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, cls()) if name in _REPLACEMENTS else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Raises the ImportError that names the replacement."""
        raise _error(module.__name__)


def install() -> None:
    """Appends the finder to `sys.meta_path`, once."""
    if MissingModules not in sys.meta_path:
        sys.meta_path.append(MissingModules)


def missing_attribute(module: str) -> Callable[[str], object]:
    """The `__getattr__` of a module that exists, some of whose names are missing.

    Example:
        __getattr__ = missing_attribute(__name__)
    """

    def getattribute(name: str) -> object:
        if f"{module}.{name}" in _REPLACEMENTS:
            raise _error(f"{module}.{name}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return getattribute
