"""The backends that a job can choose from, each with what selection must know of it.

The static table is the composition root: the one place that says which backends belong to the engine's own wheel. They
are opened by the same loader as any other backend, and nothing can take their names. Everything else is found
(discovery.py) and describes itself, which imports a module of the plugin's: only when somebody asks for it.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from hvd_core.backends.candidate import EMBEDDED, PATH, WHEEL, Candidate
from hvd_core.backends.descriptor import Available, BackendDescriptor, Unavailable
from hvd_core.backends.errors import BackendError, BackendLoadError
from hvd_core.version import __version__


class InstalledBackend:
    """A backend that could be asked for. This class: one whose properties are known without asking it.

    ``devices`` are the device types whose memory it serves ("cpu" is host memory), ``provides`` its tables, "device"
    and "comm"; ``spans_hosts``: whether one communicator can reach ranks on several hosts; ``automatic``: whether it
    may be chosen when nothing is named, the one of higher ``priority`` first. ``origin`` says where it comes from, as
    messages do. ``descriptor`` is None where there is none.
    """

    descriptor: BackendDescriptor | None = None

    def __init__(
        self,
        name: str,
        library: str,
        origin: str,
        spans_hosts: bool,
        automatic: bool,
        devices: tuple[str, ...] = ("cpu",),
        provides: frozenset[str] = frozenset({"device", "comm"}),
        priority: int = 50,
        version: str = "",
        candidate: Candidate | None = None,
    ) -> None:
        self.name, self.library, self.origin = name, library, origin
        self.spans_hosts, self.automatic, self.priority = spans_hosts, automatic, priority
        self.devices, self.provides, self.version = devices, provides, version
        self.candidate = candidate or Candidate(name, EMBEDDED)

    def path(self) -> str | Path:
        """What the engine's loader takes: the library's absolute path. Raises BackendLoadError when it is not there."""
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

    def probe(self, timeout_s: float = 5.0) -> Available | Unavailable:
        """Whether it can work on this machine."""
        return Available()

    def fault(self) -> BackendError | None:
        """Why its properties cannot be had: its package is broken. Whoever looks at backends that nobody named asks this
        first, so that one broken package does not stop the others."""
        try:
            _ = self.devices
        except BackendError as error:
            return error
        return None

    def __repr__(self) -> str:
        return f"<backend {self.name} ({self.origin})>"


class WheelBackend(InstalledBackend):
    """A backend from an installed distribution. Everything but its name, origin and version asks the plugin, which may
    raise BackendDescribeError."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate, self.name = candidate, candidate.name
        self.origin, self.version = candidate.describe_origin(), candidate.version or ""

    @cached_property
    def descriptor(self) -> BackendDescriptor:  # type: ignore[override]
        """What the plugin says about itself."""
        from hvd_core.backends.describing import describe

        return describe(self.candidate)

    devices = property(lambda self: self.descriptor.devices)
    provides = property(lambda self: self.descriptor.provides)
    priority = property(lambda self: self.descriptor.priority)
    spans_hosts = property(lambda self: self.descriptor.spans_hosts)
    automatic = property(lambda self: self.descriptor.python is None)
    library = property(lambda self: str(self.descriptor.library or ""))

    def path(self) -> str | Path:
        """Absolute path of the library, or the address behind which its class in Python stands.

        Raises BackendLoadError when the library is not there or is of another ABI, BackendDescribeError.
        """
        self._check_abi()
        if self.descriptor.python is not None:
            return self._entry_in_python()
        library = Path(self.library)
        if not library.is_file():
            wheel = self.candidate.distribution
            raise BackendLoadError(
                f"horovod: backend '{self.name}' ({self.origin}) failed to load.\n"
                f"  cause: the library that its descriptor names does not exist: {library}\n"
                f"  fix: pip install --force-reinstall {wheel}, or build it      check: hvd plugin doctor {self.name}"
            )
        return library.resolve()

    def probe(self, timeout_s: float = 5.0) -> Available | Unavailable:
        from hvd_core.backends.describing import probe

        return probe(self.descriptor, timeout_s)

    def _check_abi(self) -> None:
        major = self.descriptor.abi[0]
        if major == ABI[0]:
            return
        fix = "pip install -U " + ("hvd-core" if major > ABI[0] else str(self.candidate.distribution))
        raise BackendLoadError(
            f"horovod: backend '{self.name}' ({self.origin}) needs backend ABI {major}.x; this hvd-core {__version__} "
            f"offers {ABI[0]}.{ABI[1]}.  fix: {fix}"
        )

    def _entry_in_python(self) -> str:
        from hvd_core.backends.python_backend import entry_of

        module, _, attribute = self.descriptor.python.partition(":")
        try:
            made = getattr(import_module(module), attribute)
            if made.name != self.name:
                raise ValueError(f"{made.__qualname__}.name is {made.name!r}")
            return entry_of(made).path
        except (Exception, SystemExit) as error:
            raise BackendLoadError(
                f"horovod: backend '{self.name}' ({self.origin}) failed to load.\n"
                f"  cause: {self.descriptor.python}: {type(error).__name__}: {error}\n"
                f"  fix: repair it, or pip uninstall {self.candidate.distribution}      "
                f"check: hvd plugin doctor {self.name}"
            ) from error


class LibraryBackend(InstalledBackend):
    """A library that HOROVOD_BACKEND_PATH_<NAME> names. Nobody describes it: what it serves is read from its tables, for
    which it is loaded when that is asked. Raises BackendLoadError then."""

    def __init__(self, name: str, library: str) -> None:
        self.candidate = Candidate(name, PATH, location=library)
        self.name, self.library, self.origin = name, library, self.candidate.describe_origin()
        self.automatic, self.priority = False, 0

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What hvd_core._core.inspect_backend() says."""
        from hvd_core.backends.loading import load

        return load(self)

    @property
    def devices(self) -> tuple[str, ...]:
        own = [self.facts["device_type"], *self.facts["device_types"]]
        return tuple(dict.fromkeys(filter(None, own)))

    @property
    def provides(self) -> frozenset[str]:
        return frozenset(self.facts["slots"])

    version = property(lambda self: self.facts["version"])
    spans_hosts = property(lambda self: "ONE_HOST" not in self.facts["caps"])


class EmbeddedPython(InstalledBackend):
    """A class in this package, imported when it is chosen. For tests, like everything slow."""

    def __init__(self, name: str, place: str) -> None:
        super().__init__(
            name,
            "",
            EMBEDDED,
            spans_hosts=True,
            automatic=False,
            provides=frozenset({"comm"}),
            version=__version__,
            candidate=Candidate(name, EMBEDDED, entry=f"hvd_core.backends.embedded:{name}", for_tests=True),
        )
        self.descriptor = BackendDescriptor(name, ABI, self.devices, self.provides, None, python=place)

    def path(self) -> str | Path:
        from hvd_core.backends.python_backend import entry_of

        module, _, attribute = str(self.descriptor.python).partition(":")
        return entry_of(getattr(import_module(module), attribute)).path


# What this engine offers; tests/discovery compares it with the header.
ABI = (1, 0)

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


def installed() -> tuple[InstalledBackend, ...]:
    """All backends, the local ones first, then one per wheel and name: imports nothing, but looks for wheels where no
    launcher has. Names that two wheels offer stand there twice; discovery.find() says which is meant, or raises.
    """
    from hvd_core.backends import discovery

    near = local()
    taken = {b.name for b in near}
    return (*near, *(WheelBackend(c) for c in discovery.wheels() if c.name not in taken))


def lookup(name: str, source: str, pin: str | None = None) -> InstalledBackend:
    """The one backend of this name; wheels are looked for only when it is not a local one.

    ``source`` and ``pin`` as in discovery.find(), whose errors it raises.
    """
    from hvd_core.backends import discovery

    found = discovery.find(name, source, pin)
    if found.origin == WHEEL:
        return WheelBackend(found)
    return next(b for b in local() if b.name == found.name)


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


def describe_installed(backends: tuple[InstalledBackend, ...]) -> str:
    """``shm, tcp (embedded), other (its-wheel 0.3.0)``: names with where they come from."""
    shown = [b for b in backends if not b.candidate.for_tests]
    names = [b.name for b in shown if b.origin == EMBEDDED]
    parts = [f"{', '.join(names)} (embedded)"] if names else []
    parts += [f"{b.name} ({b.origin})" for b in shown if b.origin != EMBEDDED]
    return ", ".join(parts) or "none"


def _package_roots() -> list[Path]:
    # An editable install keeps sources in one folder and built files in another; both are on the package's
    # path, or at least in site-packages.
    roots = [Path(p) for p in getattr(sys.modules.get("hvd_core"), "__path__", ())]
    roots.append(Path(__file__).resolve().parent.parent)
    roots.append(Path(sysconfig.get_paths()["platlib"]) / "hvd_core")
    return list(dict.fromkeys(roots))
