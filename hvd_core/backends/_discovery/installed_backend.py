"""A backend that can be selected: its properties, and the phases describe, probe and load.

InstalledBackend holds constants. In its subclasses a property may import the plugin's module (WheelBackend) or load a
library (LibraryBackend). registry.py lists the backends. Any thread. Every exception of a plugin becomes an error that
names its wheel.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from hvd_core._config.hints import pip_install
from hvd_core._config.packaged import package_folders, reinstall
from hvd_core.backends import _messages, _phases
from hvd_core.backends._candidate import (
    EMBEDDED,
    GROUP,
    PATH,
    RULES,
    WHEEL,
    Candidate,
    Rules,
    faults,
    is_texts,
)
from hvd_core.backends._discovery.diagnosis import searched
from hvd_core.backends._discovery.entry_points import check_version
from hvd_core.backends._messages import of_exception
from hvd_core.backends.descriptor import Available, BackendDescriptor, Unavailable
from hvd_core.backends.errors import (
    BackendDescribeError,
    BackendError,
    BackendLoadError,
    BackendOpenError,
    BackendUnavailable,
)
from hvd_core.version import __version__

if TYPE_CHECKING:
    from hvd_core.backends.python_backend import RegisteredBackend

# The ABI that this engine offers; tests/hvd_core/backends/discovery compares it with the header.
ABI = (1, 1)


class InstalledBackend:
    """A backend that can be selected; all properties of this class are known without importing a plugin.

    ``library``: its path below the package, for a library of hvd-core's own wheel. ``devices``: the device types whose
    memory it serves ("cpu" is host memory). ``provides``: its tables, "device" and "comm". ``spans_hosts``: whether one
    communicator can reach ranks on several hosts. ``automatic``: whether it may be chosen when no name is given; the
    backend of highest ``priority`` is tried first. ``origin``: where it comes from, in the words of the messages.
    ``descriptor``: None if the backend has no descriptor.
    """

    descriptor: BackendDescriptor | None = None
    encrypts = False
    """Whether it encrypts what it sends to other hosts when HOROVOD_TLS=1 asks for it."""
    launchers: tuple[str, ...] = ()
    """The launchers whose jobs it belongs to (BackendDescriptor.launchers)."""

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
        self.name, self.library, self.origin, self.version = name, library, origin, version
        self.spans_hosts, self.automatic, self.priority = spans_hosts, automatic, priority
        self.devices: tuple[str, ...] = devices
        self.provides = provides
        self.candidate = candidate or Candidate(name, EMBEDDED)

    def path(self) -> str | Path:
        """The absolute path of the library, for the engine's loader. Raises BackendLoadError if the file is missing."""
        files = [folder / self.library for folder in package_folders()]
        for file in files:
            if file.is_file():
                return file.resolve()
        raise _failed_to_load(
            self,
            f"its library is not in this installation        searched: {', '.join(map(str, files))}",
            f"build it in a source tree, or reinstall hvd-core: {reinstall()}",
        )

    def probe(self, timeout_s: float = 5.0) -> Available | Unavailable:
        """Whether the backend works on this machine. Waits at most ``timeout_s`` seconds."""
        return Available()

    def fault(self) -> BackendError | None:
        """The error that prevents reading the properties, or None. Code that goes through backends without a request by
        name calls this first, so that one broken package does not hide the others."""
        try:
            _ = self.devices
        except BackendError as error:
            return error
        return None

    def __repr__(self) -> str:
        return f"<backend {self.name} ({self.origin})>"


def _failed_to_load(backend: InstalledBackend, cause: str, fix: str) -> BackendLoadError:
    return BackendLoadError(
        f"horovod: backend '{backend.name}' ({backend.origin}) failed to load.\n  cause: {cause}\n  fix: {fix}"
    )


def _other_abi(backend: InstalledBackend, major: int) -> BackendLoadError:
    wheel = "hvd-core" if major > ABI[0] else backend.candidate.distribution
    fix = pip_install(wheel, "-U") if wheel else "build it against this hvd-core"
    return BackendLoadError(
        f"horovod: backend '{backend.name}' ({backend.origin}) needs backend ABI {major}.x; this hvd-core {__version__} "
        f"offers {ABI[0]}.{ABI[1]}.  fix: {fix}"
    )


class ClassBackend(InstalledBackend):
    """A class in this process, or in this package. ``make``: returns the class with its C table."""

    def __init__(
        self, candidate: Candidate, make: Callable[[], RegisteredBackend], spans_hosts: bool, version: str
    ) -> None:
        origin, provides = candidate.describe_origin(), frozenset({"comm"})
        super().__init__(
            candidate.name,
            "",
            origin,
            spans_hosts,
            False,
            ("cpu",),
            provides,
            version=version,
            candidate=candidate,
        )
        self.make = make

    def path(self) -> str:
        return self.make().path


# Describe and probe. Describing imports the plugin's small module.


class ProbeFailed(Unavailable):
    """Unavailable because the probe itself failed: it raised, did not return in time, or returned a wrong type."""


def describe(candidate: Candidate) -> BackendDescriptor:
    """The descriptor that the wheel of ``candidate`` returns.

    Raises BackendDescribeError, with the plugin's own exception as its cause; BackendVersionMismatch if the launcher
    found another version than this host has; ValueError if the candidate is not from a wheel.
    """
    if candidate.origin != WHEEL or not candidate.entry:
        raise ValueError(f"backend '{candidate.name}' ({candidate.describe_origin()}) is not from a wheel")
    check_version(candidate)
    with _phases.running(candidate.name, _phases.DESCRIBE):
        return _described(candidate)


def _described(candidate: Candidate) -> BackendDescriptor:
    try:
        descriptor = _load(candidate)()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        cause = f"{candidate.entry} failed: {of_exception(error)}"
        raise _broken(candidate, cause, _upgrade_fix(error)) from error
    if not isinstance(descriptor, BackendDescriptor):
        raise _broken(candidate, f"{candidate.entry} returned {descriptor!r}, not a BackendDescriptor")
    wrong = _faults(candidate.name, descriptor)
    if not wrong and candidate.static is not None:
        wrong = candidate.static.differences(descriptor)
    if wrong:
        raise _broken(candidate, "its descriptor says " + "; ".join(wrong))
    return descriptor


def probe(descriptor: BackendDescriptor, timeout_s: float = 5.0) -> Available | Unavailable:
    """The answer of the backend's own probe: whether it works on this machine. If the probe raises, returns a wrong
    type or takes longer than ``timeout_s`` seconds, the result is ProbeFailed. A probe that takes longer keeps its
    thread.
    """
    answer: list[Any] = []

    def ask() -> None:
        try:
            answer.append(descriptor.probe())
        except BaseException as error:
            answer.append(ProbeFailed(f"its probe raised {of_exception(error)}"))

    with _phases.running(descriptor.name, _phases.PROBE):
        thread = threading.Thread(target=ask, name=f"hvd-probe-{descriptor.name}", daemon=True)
        thread.start()
        thread.join(timeout_s)
    if not answer:
        return ProbeFailed(
            f"its probe has not answered within {timeout_s:g} s",
            "find out what its library waits for, or allow it more in plugins.toml: [probe] timeout_s",
        )
    if not isinstance(answer[0], (Available, Unavailable)):
        return ProbeFailed(f"its probe answered {answer[0]!r}, which is neither Available nor Unavailable")
    return answer[0]


def _load(candidate: Candidate) -> Any:
    """Import what the entry point names: through stevedore, or directly in a rank that has the launcher's list. A rank of
    a large job reads no metadata and does not import stevedore."""
    entry = str(candidate.entry)
    if candidate.from_spec:
        return resolve_name("".join(entry.partition("[")[0].split()))  # "module : name" is an entry point too
    from importlib.metadata import EntryPoint

    from stevedore.named import NamedExtensionManager

    point = EntryPoint(candidate.name, entry, GROUP)
    failures: list[BaseException] = []

    class ChosenExtension(NamedExtensionManager):  # type: ignore[type-arg]  # generic in new releases only
        """The chosen entry point alone. By itself stevedore imports every distribution that has one of its name."""

        def list_entry_points(self) -> list[EntryPoint]:
            return [point]

    extensions = ChosenExtension(
        GROUP,
        names=[candidate.name],
        on_load_failure_callback=lambda manager, failed, error: failures.append(error),
    )
    if failures:
        raise failures[0]
    return extensions[candidate.name].plugin


def _broken(candidate: Candidate, cause: str, fix: str = "") -> BackendDescribeError:
    wheel = candidate.distribution
    fix = fix or f"pip uninstall {wheel}, or repair it: {pip_install(str(wheel), '--force-reinstall')}"
    return BackendDescribeError(
        f"horovod: backend '{candidate.name}' ({candidate.describe_origin()}) cannot be described.\n"
        f"  cause: {cause}\n"
        f"  fix: {fix}        check: hvd plugin doctor {candidate.name}"
    )


def _upgrade_fix(error: BaseException) -> str:
    """The fix if the plugin sets a field that this version's descriptor does not have; "" for other errors."""
    if (
        isinstance(error, TypeError)
        and "BackendDescriptor" in str(error)
        and "keyword argument" in str(error)
    ):
        return (
            f"it may be written for a newer hvd-core than this {__version__}: {pip_install('hvd-core', '-U')}"
        )
    return ""


_DESCRIPTOR_RULES: Rules = {
    **{key: rule for key, rule in RULES.items() if key != "device_files"},
    "requires": (is_texts, "a tuple of texts"),
    "probe": (callable, "a function"),
    "launch": (lambda v: v is None or callable(v), "a function"),
}


def _faults(name: str, found: BackendDescriptor) -> list[str]:
    """The faults of a descriptor, one text each. Types are checked too, because authors may not use a type checker."""
    wrong = [] if found.name == name else [f"name = {found.name!r}, but the entry point is named {name!r}"]
    wrong += faults(vars(found), _DESCRIPTOR_RULES.items())
    if found.python is None:
        is_path = isinstance(found.library, (str, Path)) and os.path.isabs(found.library)
        wrong += [] if is_path else [f"library = {found.library!r}, which is not an absolute path"]
        return wrong
    if not (isinstance(found.python, str) and all(found.python.partition(":"))):
        wrong.append(f'python = {found.python!r}, which is not "package.module:Class"')
    if found.library is not None:
        wrong.append(f"library = {found.library!r}, beside a class in Python; a backend has one of them")
    return wrong


class WheelBackend(InstalledBackend):
    """A backend from an installed distribution. Name, origin and version are known from metadata; every other property
    imports the plugin's module, and may raise BackendDescribeError."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate, self.name = candidate, candidate.name
        self.origin, self.version = candidate.describe_origin(), candidate.version or ""

    @cached_property
    def descriptor(self) -> BackendDescriptor:  # type: ignore[override]  # made at the first use
        """The descriptor that the plugin's function returns."""
        return describe(self.candidate)

    devices = property(lambda self: self.descriptor.devices)
    provides = property(lambda self: self.descriptor.provides)
    priority = property(lambda self: self.descriptor.priority)
    spans_hosts = property(lambda self: self.descriptor.spans_hosts)
    launchers = property(lambda self: self.descriptor.launchers)
    automatic = property(lambda self: self.descriptor.python is None)
    library = property(lambda self: str(self.descriptor.library or ""))

    def path(self) -> str | Path:
        """The absolute path of the library; for a backend in Python, the address of its entry function.

        Raises BackendLoadError if the library is missing or built for another ABI, and BackendDescribeError.
        """
        major = self.descriptor.abi[0]
        if major != ABI[0]:
            raise _other_abi(self, major)
        if self.descriptor.python is not None:
            return self._python_entry()
        library = Path(self.library)
        if not library.is_file():
            wheel = str(self.candidate.distribution)
            raise _failed_to_load(
                self,
                f"the library that its descriptor names does not exist: {library}",
                f"build it, or {pip_install(wheel, '--force-reinstall')}      check: hvd plugin doctor {self.name}",
            )
        return library.resolve()

    def probe(self, timeout_s: float = 5.0) -> Available | Unavailable:
        return probe(self.descriptor, timeout_s)

    def _python_entry(self) -> str:
        from hvd_core.backends.python_backend import entry_of  # imports NumPy

        module, _, attribute = str(self.descriptor.python).partition(":")
        try:
            with _phases.running(self.name, _phases.LOAD):
                backend_class = getattr(import_module(module), attribute)
                if backend_class.name != self.name:
                    raise ValueError(f"{backend_class.__qualname__}.name is {backend_class.name!r}")
                return entry_of(backend_class).path
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise _failed_to_load(
                self,
                f"{self.descriptor.python}: {of_exception(error)}",
                f"repair it, or pip uninstall {self.candidate.distribution}      check: hvd plugin doctor {self.name}",
            ) from error


# Load. The native loader knows the path and the reason of a failure; this adds the wheel, the searched folders and the
# fix. A loaded library stays loaded. May run the backend's own code, without a time limit.


def load_backend(backend: InstalledBackend, alone: bool = False, alternative: str = "") -> dict[str, Any]:
    """Load the backend's library and return the result of hvd_core._core.inspect_backend(). ``alone`` and
    ``alternative``: as in messages.unavailable().

    Raises BackendDescribeError, BackendLoadError, and BackendUnavailable when the library itself reports that it cannot
    work here (its vendor's library or its device is missing).
    """
    from hvd_core._core import inspect_backend  # the compiled engine; discovery alone does without it

    path = str(backend.path())
    try:
        with _phases.running(backend.name, _phases.LOAD):
            return inspect_backend(backend.name, path)
    # The new text repeats everything that the compiled part said, so the chain would show it twice.
    except BackendLoadError as error:
        raise explain(backend, path, str(error)) from None
    except BackendOpenError as error:
        raise _refused(backend, path, str(error), alone, alternative) from None


def explain(backend: InstalledBackend, path: str, text: str) -> BackendLoadError:
    """The error of the native loader, with wheel, version, searched folders, requirements and fix added."""
    if abi := re.search(r"needs backend ABI (\d+)\.", text):
        return _other_abi(backend, int(abi[1]))
    parts = re.search(r"\n  cause: (.*?)(?:\n  fix: (.*))?$", text, re.DOTALL)
    if parts is None:
        return BackendLoadError(text)
    cause, fix = parts[1], parts[2] or ""
    # Folders matter for the dynamic loader's reasons only; the handshake's reasons concern the library itself.
    if re.search("cannot open shared object|undefined symbol|not found", cause):
        cause += "        searched: " + ", ".join(searched(Path(path)))
        settings = _messages.library_settings(backend.name)
        fix = _probe_fix(backend) or f"install what it needs, or name its folder in {settings}"
    requires = backend.descriptor.requires if backend.descriptor else ()
    needs = f"needs: {', '.join(requires)}        " if requires else ""
    return BackendLoadError(
        f"horovod: backend '{backend.name}' ({backend.origin}) failed to load.\n"
        f"  cause: {cause}\n"
        f"  {needs}fix: {fix}        check: hvd plugin doctor {backend.name}"
    )


def _refused(backend: InstalledBackend, path: str, text: str, alone: bool, alternative: str) -> BackendError:
    """The error for a library that opened and whose entry function returned an error."""
    reason = text.removeprefix(f"{backend.name}: load: ")
    if not reason.endswith(" (UNAVAILABLE)"):
        return explain(backend, path, f"\n  cause: its entry function says: {reason}\n  fix: see its manual")
    requires = backend.descriptor.requires if backend.descriptor else ()
    fix = _probe_fix(backend) or (f"have what it needs: {', '.join(requires)}" if requires else "")
    reason = reason.removesuffix(" (UNAVAILABLE)")
    return BackendUnavailable(_messages.unavailable(backend.name, reason, fix, alone, alternative))


def _probe_fix(backend: InstalledBackend) -> str:
    answer = backend.probe()
    return answer.fix if isinstance(answer, Unavailable) else ""


class LibraryBackend(InstalledBackend):
    """A library that HOROVOD_BACKEND_PATH_<NAME> names. It has no descriptor: its properties are read from its tables, so
    reading one loads the library and may raise BackendLoadError."""

    def __init__(self, name: str, library: str) -> None:
        self.candidate = Candidate(name, PATH, location=library)
        self.name, self.library, self.origin = name, library, self.candidate.describe_origin()
        self.automatic, self.priority = False, 0

    def path(self) -> Path:
        library = Path(self.library)
        if not library.is_file():
            cause = f"the file that {self.origin} names does not exist: {library}"
            raise _failed_to_load(self, cause, f"build it, or unset {self.origin}")
        return library.resolve()

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The result of hvd_core._core.inspect_backend()."""
        return load_backend(self)

    @cached_property
    def devices(self) -> tuple[str, ...]:  # type: ignore[override]  # made at the first use
        own = [self.facts["device_type"], *self.facts["device_types"]]
        return tuple(dict.fromkeys(filter(None, own)))

    provides = property(lambda self: frozenset(self.facts["slots"]))
    version = property(lambda self: self.facts["version"])
    spans_hosts = property(lambda self: "ONE_HOST" not in self.facts["caps"])
