"""The backends that are installed: a static table of those that ship inside this distribution.

The table is the composition root: the one place that says which shared objects belong to the engine's own
wheel. They are opened by the same loader as any other backend, and nothing can take their names.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from hvd_core.backends.errors import BackendLoadError


@dataclass(frozen=True)
class InstalledBackend:
    """A backend that could be asked for.

    ``spans_hosts`` and ``automatic`` are what selection needs to know before a library is loaded: whether one
    communicator can reach ranks on several hosts, and whether it may be chosen when nothing is named.
    """

    name: str
    library: str
    origin: str
    spans_hosts: bool
    automatic: bool

    def path(self) -> Path:
        """Absolute path of the shared object. Raises BackendLoadError when the file is not there."""
        roots = _package_roots()
        for root in roots:
            candidate = root / self.library
            if candidate.is_file():
                return candidate.resolve()
        searched = ", ".join(str(root / self.library) for root in roots)
        raise BackendLoadError(
            f"horovod: backend '{self.name}' ({self.origin}) failed to load.\n"
            f"  cause: its library is not in this installation        searched: {searched}\n"
            "  fix: reinstall hvd-core (pip install --force-reinstall hvd-core), or build it in a source tree"
        )


_EMBEDDED = (
    InstalledBackend("shm", "lib/libhvd_backend_shm.so", "embedded", spans_hosts=False, automatic=True),
    InstalledBackend("tcp", "lib/libhvd_backend_tcp.so", "embedded", spans_hosts=True, automatic=True),
)


_PATH_VARIABLE = "HOROVOD_BACKEND_PATH_"
_added: list[InstalledBackend] = []


def add(backend: InstalledBackend) -> None:
    """A backend that this process has made itself, to be found by its name from now on."""
    _added.append(backend)


def installed() -> tuple[InstalledBackend, ...]:
    """All installed backends, the embedded ones first. Loads and imports nothing.

    A library that is not packaged, such as one under development, is named by HOROVOD_BACKEND_PATH_<NAME>: an absolute
    path. It is never chosen automatically. Raises BackendLoadError for a path that is not absolute.
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
    return InstalledBackend(name, path, f"{_PATH_VARIABLE}{name.upper()}", spans_hosts=True, automatic=False)


def host_math() -> tuple[str, str]:
    """(name, path) of the backend whose device table computes on host memory for the engine itself."""
    return _EMBEDDED[0].name, str(_EMBEDDED[0].path())


def describe_installed(backends: tuple[InstalledBackend, ...]) -> str:
    """``shm, tcp (embedded), other (its-wheel 0.3.0)``: names with where they come from."""
    embedded = [b.name for b in backends if b.origin == "embedded"]
    parts = [f"{', '.join(embedded)} (embedded)"] if embedded else []
    parts += [f"{b.name} ({b.origin})" for b in backends if b.origin != "embedded"]
    return ", ".join(parts) or "none"


def _package_roots() -> list[Path]:
    # An editable install keeps sources in one folder and built files in another; both are on the package's
    # path, or at least in site-packages.
    roots = [Path(p) for p in getattr(sys.modules.get("hvd_core"), "__path__", ())]
    roots.append(Path(__file__).resolve().parent.parent)
    roots.append(Path(sysconfig.get_paths()["platlib"]) / "hvd_core")
    return list(dict.fromkeys(roots))
