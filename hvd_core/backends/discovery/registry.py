"""The backends that need no search: the embedded ones, classes registered in this process, libraries named by variables.

The static table is the one place that lists the backends of hvd-core's own wheel. The same loader opens them as any other
backend, and no plugin can take their names. search.py finds all others.
"""

from __future__ import annotations

import os

from hvd_core.backends.candidate import EMBEDDED
from hvd_core.backends.discovery.installed_backend import InstalledBackend
from hvd_core.backends.discovery.local_backends import EmbeddedPythonBackend, LibraryBackend
from hvd_core.backends.errors import BackendLoadError


class _Encrypting(InstalledBackend):
    encrypts = True


_EMBEDDED = (
    InstalledBackend("shm", "lib/libhvd_backend_shm.so", EMBEDDED, spans_hosts=False, automatic=True),
    _Encrypting("tcp", "lib/libhvd_backend_tcp.so", EMBEDDED, spans_hosts=True, automatic=True),
    EmbeddedPythonBackend("chaos", "hvd_core.backends.chaos:ChaosBackend"),
)

_PATH_VARIABLE = "HOROVOD_BACKEND_PATH_"
_added: list[InstalledBackend] = []


def add(backend: InstalledBackend) -> None:
    """Make a backend of this process available by its name."""
    _added.append(backend)


def embedded() -> tuple[InstalledBackend, ...]:
    """The backends of hvd-core itself, in the order in which the automatic choice tries them."""
    return _EMBEDDED


def local() -> tuple[InstalledBackend, ...]:
    """The backends that need no search: the embedded ones, classes registered in this process, and libraries without a
    wheel, for instance under development, which HOROVOD_BACKEND_PATH_<NAME> names by an absolute path. The latter two are
    never chosen automatically. Raises BackendLoadError for a path that is not absolute.
    """
    unpackaged = (
        _unpackaged(variable.removeprefix(_PATH_VARIABLE).lower(), path)
        for variable in sorted(name for name in os.environ if name.startswith(_PATH_VARIABLE))
        if (path := os.environ.get(variable))
    )
    return (*_EMBEDDED, *_added, *unpackaged)


def _unpackaged(name: str, path: str) -> InstalledBackend:
    if not os.path.isabs(path):
        raise BackendLoadError(
            f"horovod: backend '{name}': {_PATH_VARIABLE}{name.upper()}={path} is not an absolute path; libraries are "
            f"not taken from the current folder.\n  fix: {_PATH_VARIABLE}{name.upper()}=/full/path/to/the/library.so"
        )
    return LibraryBackend(name, path)


def host_math() -> tuple[str, str]:
    """(name, path) of the backend whose device table computes on host memory for the engine."""
    return _EMBEDDED[0].name, str(_EMBEDDED[0].path())
