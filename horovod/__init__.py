"""Horovod's API on the hvd_core engine: `import horovod.torch as hvd`, `horovod.run`, `horovodrun`.

This package imports neither a framework nor the engine: Spark drivers and launchers import it on machines that have
neither. Programs import the framework modules by name; the version is looked up at its first use. The import of a
module of the original that is missing here names its replacement (_compat.py).
"""

from horovod import _compat
from horovod.runner import run

__all__ = ["__version__", "run"]

_compat.install()


def __getattr__(name: str) -> str:
    # A program that only asks for horovod.run does not need hvd_core yet.
    if name == "__version__":
        from hvd_core.version import __version__

        globals()["__version__"] = __version__
        return __version__
    raise AttributeError(f"module 'horovod' has no attribute {name!r}")
