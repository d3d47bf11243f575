"""The backends that need no looking: the engine's own, classes registered in this process, libraries named by variables.

The static table is the composition root: the one place that says which backends belong to the engine's own wheel. They
are opened by the same loader as any other backend, and nothing can take their names. Everything else is found
(discovery.py).
"""

from __future__ import annotations

import os

from hvd_core.backends.candidate import EMBEDDED
from hvd_core.backends.errors import BackendLoadError
from hvd_core.backends.installed_backend import EmbeddedPython, InstalledBackend, LibraryBackend

_EMBEDDED = (
    InstalledBackend("shm", "lib/libhvd_backend_shm.so", EMBEDDED, spans_hosts=False, automatic=True),
    InstalledBackend("tcp", "lib/libhvd_backend_tcp.so", EMBEDDED, spans_hosts=True, automatic=True),
    EmbeddedPython("chaos", "hvd_core.backends.chaos:ChaosBackend"),
)

_PATH_VARIABLE = "HOROVOD_BACKEND_PATH_"
_added: list[InstalledBackend] = []


def add(backend: InstalledBackend) -> None:
    """A backend that this process has made itself, to be found by its name from now on."""
    _added.append(backend)


def embedded() -> tuple[InstalledBackend, ...]:
    """Those of this distribution, in the order in which they are tried when nothing is named."""
    return _EMBEDDED


def local() -> tuple[InstalledBackend, ...]:
    """The backends that need no looking: the embedded ones, classes registered in this process, and libraries that are
    not packaged, such as one under development, which HOROVOD_BACKEND_PATH_<NAME> names by an absolute path. The latter
    two are never chosen automatically. Raises BackendLoadError for a path that is not absolute.
    """
    unpackaged = (
        _unpackaged(variable.removeprefix(_PATH_VARIABLE).lower(), path)
        for variable, path in sorted(os.environ.items())
        if variable.startswith(_PATH_VARIABLE) and path
    )
    return (*_EMBEDDED, *_added, *unpackaged)


def _unpackaged(name: str, path: str) -> InstalledBackend:
    if not os.path.isabs(path):
        raise BackendLoadError(
            f"horovod: backend '{name}': {_PATH_VARIABLE}{name.upper()}={path} is not an absolute path; libraries are "
            "not taken from the current folder."
        )
    return LibraryBackend(name, path)


def host_math() -> tuple[str, str]:
    """(name, path) of the backend whose device table computes on host memory for the engine itself."""
    return _EMBEDDED[0].name, str(_EMBEDDED[0].path())
