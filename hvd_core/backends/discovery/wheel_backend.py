"""A backend from an installed distribution. Its properties come from the plugin's descriptor. Any thread."""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from pathlib import Path

from hvd_core._config.wheels import pip_install
from hvd_core.backends import phases
from hvd_core.backends.candidate import Candidate
from hvd_core.backends.descriptor import Available, BackendDescriptor, Unavailable
from hvd_core.backends.discovery.describe_and_probe import describe, probe
from hvd_core.backends.discovery.installed_backend import ABI, InstalledBackend
from hvd_core.backends.errors import BackendLoadError
from hvd_core.backends.messages import of_exception
from hvd_core.version import __version__


class WheelBackend(InstalledBackend):
    """A backend from an installed distribution. Name, origin and version are known from metadata; every other property
    imports the plugin's module, and may raise BackendDescribeError."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate, self.name = candidate, candidate.name
        self.origin, self.version = candidate.describe_origin(), candidate.version or ""

    @cached_property
    def descriptor(self) -> BackendDescriptor:  # type: ignore[override]
        """The descriptor that the plugin's function returns."""
        return describe(self.candidate)

    devices = property(lambda self: self.descriptor.devices)
    provides = property(lambda self: self.descriptor.provides)
    priority = property(lambda self: self.descriptor.priority)
    spans_hosts = property(lambda self: self.descriptor.spans_hosts)
    launchers = property(lambda self: self.descriptor.launchers)  # type: ignore[assignment]
    automatic = property(lambda self: self.descriptor.python is None)
    library = property(lambda self: str(self.descriptor.library or ""))

    def path(self) -> str | Path:
        """The absolute path of the library; for a backend in Python, the address of its entry function.

        Raises BackendLoadError if the library is missing or built for another ABI, and BackendDescribeError.
        """
        self._check_abi()
        if self.descriptor.python is not None:
            return self._python_entry()
        library = Path(self.library)
        if not library.is_file():
            wheel = self.candidate.distribution
            raise BackendLoadError(
                f"horovod: backend '{self.name}' ({self.origin}) failed to load.\n"
                f"  cause: the library that its descriptor names does not exist: {library}\n"
                f"  fix: build it, or {pip_install(str(wheel), '--force-reinstall')}      "
                f"check: hvd plugin doctor {self.name}"
            )
        return library.resolve()

    def probe(self, timeout_s: float = 5.0) -> Available | Unavailable:
        return probe(self.descriptor, timeout_s)

    def _check_abi(self) -> None:
        major = self.descriptor.abi[0]
        if major == ABI[0]:
            return
        fix = pip_install("hvd-core" if major > ABI[0] else str(self.candidate.distribution), "-U")
        raise BackendLoadError(
            f"horovod: backend '{self.name}' ({self.origin}) needs backend ABI {major}.x; this hvd-core {__version__} "
            f"offers {ABI[0]}.{ABI[1]}.  fix: {fix}"
        )

    def _python_entry(self) -> str:
        from hvd_core.backends.python.backend import entry_of  # imports NumPy

        module, _, attribute = self.descriptor.python.partition(":")
        try:
            with phases.running(self.name, phases.LOAD):
                backend_class = getattr(import_module(module), attribute)
                if backend_class.name != self.name:
                    raise ValueError(f"{backend_class.__qualname__}.name is {backend_class.name!r}")
                return entry_of(backend_class).path
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise BackendLoadError(
                f"horovod: backend '{self.name}' ({self.origin}) failed to load.\n"
                f"  cause: {self.descriptor.python}: {of_exception(error)}\n"
                f"  fix: repair it, or pip uninstall {self.candidate.distribution}      "
                f"check: hvd plugin doctor {self.name}"
            ) from error
