"""A backend that could be asked for, with what selection must know of it: one class per way in which that is known.

Properties of one class are constants; of another, asking imports the plugin's module; of a third, it loads a library.
Which backends there are stands in registry.py and discovery.py. Any thread.
"""

from __future__ import annotations

import sys
import sysconfig
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from hvd_core.backends.candidate import EMBEDDED, PATH, Candidate
from hvd_core.backends.descriptor import Available, BackendDescriptor, Unavailable
from hvd_core.backends.errors import BackendError, BackendLoadError
from hvd_core.version import __version__

# What this engine offers; tests/discovery compares it with the header.
ABI = (1, 0)


class InstalledBackend:
    """A backend that could be asked for. This class: one whose properties are known without asking it.

    ``devices`` are the device types whose memory it serves ("cpu" is host memory), ``provides`` its tables, "device"
    and "comm"; ``spans_hosts``: whether one communicator can reach ranks on several hosts; ``automatic``: whether it
    may be chosen when nothing is named, the one of higher ``priority`` first. ``origin`` says where it comes from, as
    messages do. ``descriptor`` is None where there is none.
    """

    descriptor: BackendDescriptor | None = None
    launchers: tuple[str, ...] = ()
    """Those whose jobs it belongs to (BackendDescriptor.launchers)."""

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
    launchers = property(lambda self: self.descriptor.launchers)  # type: ignore[assignment]
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


def _package_roots() -> list[Path]:
    # An editable install keeps sources in one folder and built files in another; both are on the package's
    # path, or at least in site-packages.
    roots = [Path(p) for p in getattr(sys.modules.get("hvd_core"), "__path__", ())]
    roots.append(Path(__file__).resolve().parent.parent)
    roots.append(Path(sysconfig.get_paths()["platlib"]) / "hvd_core")
    return list(dict.fromkeys(roots))
