"""A backend that can be selected: its properties, and the phases describe, probe and load.

InstalledBackend holds constants. In its subclasses a property may import the plugin's module (WheelBackend) or load a
library (LibraryBackend). registry.py lists the backends. Any thread. Every exception of a plugin becomes an error that
names its wheel.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import threading
from functools import cached_property
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from hvd_core._config.hints import pip_install
from hvd_core.backends import _messages, _phases
from hvd_core.backends._candidate import EMBEDDED, GROUP, PATH, TABLES, WHEEL, Candidate
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

# The ABI that this engine offers; tests/discovery compares it with the header.
ABI = (1, 1)


class InstalledBackend:
    """A backend that can be selected; all properties of this class are known without importing a plugin.

    ``devices``: the device types whose memory it serves ("cpu" is host memory). ``provides``: its tables, "device" and
    "comm". ``spans_hosts``: whether one communicator can reach ranks on several hosts. ``automatic``: whether it may
    be chosen when no name is given; the backend of highest ``priority`` is tried first. ``origin``: where it comes
    from, in the words of the messages. ``descriptor``: None if the backend has no descriptor.
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
        self.name: str = name
        self.library: str = library
        self.origin: str = origin
        self.spans_hosts: bool = spans_hosts
        self.automatic: bool = automatic
        self.priority: int = priority
        self.devices: tuple[str, ...] = devices
        self.provides: frozenset[str] = provides
        self.version: str = version
        self.candidate: Candidate = candidate or Candidate(name, EMBEDDED)

    def path(self) -> str | Path:
        """The absolute path of the library, for the engine's loader. Raises BackendLoadError if the file is missing."""
        roots = _package_roots()
        for root in roots:
            library = root / self.library
            if library.is_file():
                return library.resolve()
        searched = ", ".join(str(root / self.library) for root in roots)
        raise BackendLoadError(
            f"horovod: backend '{self.name}' ({self.origin}) failed to load.\n"
            f"  cause: its library is not in this installation        searched: {searched}\n"
            "  fix: build it in a source tree, or reinstall hvd-core: "
            + pip_install("hvd-core", "--force-reinstall", "--no-deps")
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


def _package_roots() -> list[Path]:
    # An editable install keeps sources in one folder and built files in another; both are on the package's
    # path, or at least in site-packages.
    roots = [Path(p) for p in getattr(sys.modules.get("hvd_core"), "__path__", ())]
    return list(dict.fromkeys([*roots, *_own_roots()]))


@functools.cache
def _own_roots() -> tuple[Path, Path]:
    return Path(__file__).resolve().parents[2], Path(sysconfig.get_path("platlib")) / "hvd_core"


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
        function = _load(candidate)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _broken(candidate, f"importing {candidate.entry} failed: {of_exception(error)}") from error
    if isinstance(function, BackendDescriptor):
        raise _broken(candidate, f"{candidate.entry} is a descriptor; it must be a function that returns one")
    if not callable(function):
        raise _broken(
            candidate, f"{candidate.entry} is {function!r}, not a function that returns a descriptor"
        )
    try:
        descriptor = function()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _broken(
            candidate, f"calling {candidate.entry} failed: {of_exception(error)}", _upgrade_fix(error)
        ) from error
    if not isinstance(descriptor, BackendDescriptor):
        raise _broken(candidate, f"{candidate.entry} returned {descriptor!r}, not a BackendDescriptor")
    faults = _faults(candidate.name, descriptor)
    if not faults and candidate.static is not None:
        faults = candidate.static.differences(descriptor)
    if faults:
        raise _broken(candidate, "its descriptor says " + "; ".join(faults))
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


def _faults(name: str, found: BackendDescriptor) -> list[str]:
    """The faults of a descriptor, one text each. Types are checked too, because authors may not use a type checker."""
    faults = []

    def require(good: bool, field: str, rule: str) -> None:
        if not good:
            faults.append(f"{field} = {getattr(found, field)!r}, {rule}")

    def is_texts(value: Any) -> bool:
        return isinstance(value, tuple) and all(isinstance(text, str) and text for text in value)

    require(found.name == name, "name", f"but the entry point is named {name!r}")
    abi = found.abi
    whole = isinstance(abi, tuple) and len(abi) == 2 and all(type(part) is int and part >= 0 for part in abi)
    require(whole, "abi", "which is not (major, minor)")
    require(
        is_texts(found.devices) and bool(found.devices), "devices", 'which is not a tuple such as ("cpu",)'
    )
    provides = found.provides
    known = isinstance(provides, (set, frozenset)) and bool(provides) and provides <= TABLES
    require(known, "provides", 'which is not a set of "device", "comm"')
    require(type(found.priority) is int, "priority", "which is not a whole number")
    require(is_texts(found.requires), "requires", "which is not a tuple of texts")
    require(callable(found.probe), "probe", "which is not a function")
    require(isinstance(found.spans_hosts, bool), "spans_hosts", "which is neither True nor False")
    require(is_texts(found.launchers), "launchers", "which is not a tuple of launchers' names")
    require(found.launch is None or callable(found.launch), "launch", "which is not a function")
    if found.python is not None:
        named = isinstance(found.python, str) and all(found.python.partition(":"))
        require(named, "python", 'which is not "package.module:Class"')
        require(found.library is None, "library", "beside a class in Python; a backend has one of them")
    else:
        path = isinstance(found.library, (str, Path)) and os.path.isabs(found.library)
        require(path, "library", "which is not an absolute path")
    return faults


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
            raise BackendLoadError(
                f"horovod: backend '{self.name}' ({self.origin}) failed to load.\n"
                f"  cause: {self.descriptor.python}: {of_exception(error)}\n"
                f"  fix: repair it, or pip uninstall {self.candidate.distribution}      "
                f"check: hvd plugin doctor {self.name}"
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
        raise BackendLoadError(explain(backend, path, str(error))) from None
    except BackendOpenError as error:
        raise _refused(backend, path, str(error), alone, alternative) from None


def explain(backend: InstalledBackend, path: str, text: str) -> str:
    """The compiled loader's message ``text`` with wheel, version, searched folders, requirements and fix added."""
    head, cause, fix = _parts(text)
    if "needs backend ABI" in head:
        return _about_abi(backend, head)
    if not cause:
        return text
    # Folders matter for the dynamic loader's reasons only; the handshake's reasons concern the library itself.
    places = ""
    if "cannot open shared object" in cause or "undefined symbol" in cause or "not found" in cause:
        places = "        searched: " + ", ".join(searched(Path(path)))
        fix = (
            _probe_fix(backend)
            or f"install what it needs, or name its folder in {_messages.library_settings(backend.name)}"
        )
    requires = backend.descriptor.requires if backend.descriptor else ()
    needs = f"needs: {', '.join(requires)}        " if requires else ""
    return (
        f"horovod: backend '{backend.name}' ({backend.origin}) failed to load.\n"
        f"  cause: {cause}{places}\n"
        f"  {needs}fix: {fix}        check: hvd plugin doctor {backend.name}"
    )


def _refused(backend: InstalledBackend, path: str, text: str, alone: bool, alternative: str) -> BackendError:
    """The error for a library that opened and whose entry function returned an error."""
    reason = text.removeprefix(f"{backend.name}: load: ")
    if reason.endswith(" (UNAVAILABLE)"):
        reason = reason.removesuffix(" (UNAVAILABLE)")
        requires = backend.descriptor.requires if backend.descriptor else ()
        fix = _probe_fix(backend) or (f"have what it needs: {', '.join(requires)}" if requires else "")
        return BackendUnavailable(_messages.unavailable(backend.name, reason, fix, alone, alternative))
    return BackendLoadError(
        explain(
            backend,
            path,
            f"horovod: backend\n  cause: its entry function says: {reason}\n  fix: see its manual",
        )
    )


def _probe_fix(backend: InstalledBackend) -> str:
    answer = backend.probe()
    return answer.fix if isinstance(answer, Unavailable) else ""


def _about_abi(backend: InstalledBackend, head: str) -> str:
    head = head.replace("this hvd-core offers", f"this hvd-core {__version__} offers")
    head = head.replace(
        f"backend '{backend.name}' needs", f"backend '{backend.name}' ({backend.origin}) needs"
    )
    head = head.replace("install a newer hvd-core", pip_install("hvd-core", "-U"))
    if backend.candidate.origin == WHEEL:
        newer = pip_install(str(backend.candidate.distribution), "-U")
        head = head.replace("install a newer release of the backend", newer)
    return head


def _parts(text: str) -> tuple[str, str, str]:
    """(first line, cause, fix) of the compiled loader's message."""
    head, _, rest = text.partition("\n  cause: ")
    cause, _, fix = rest.partition("\n  fix: ")
    return head, cause, fix


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
            raise BackendLoadError(
                f"horovod: backend '{self.name}' ({self.origin}) failed to load.\n"
                f"  cause: the file that {self.origin} names does not exist: {self.library}\n"
                f"  fix: build it, or unset {self.origin}"
            )
        return library.resolve()

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The result of hvd_core._core.inspect_backend()."""
        return load_backend(self)

    @cached_property
    def devices(self) -> tuple[str, ...]:  # type: ignore[override]  # made at the first use
        own = [self.facts["device_type"], *self.facts["device_types"]]
        return tuple(dict.fromkeys(filter(None, own)))

    @cached_property
    def provides(self) -> frozenset[str]:  # type: ignore[override]  # made at the first use
        return frozenset(self.facts["slots"])

    version = property(lambda self: self.facts["version"])
    spans_hosts = property(lambda self: "ONE_HOST" not in self.facts["caps"])


class EmbeddedPythonBackend(InstalledBackend):
    """A backend class of this package. It is imported when it is chosen; only tests choose it, because it is slow."""

    def __init__(self, name: str, class_path: str) -> None:
        super().__init__(
            name,
            "",
            EMBEDDED,
            spans_hosts=True,
            automatic=False,
            provides=frozenset({"comm"}),
            version=__version__,
            candidate=Candidate(
                name, EMBEDDED, entry=f"hvd_core.backends._discovery.registry:{name}", for_tests=True
            ),
        )
        self._class_path = class_path
        self.descriptor = BackendDescriptor(name, ABI, self.devices, self.provides, None, python=class_path)

    def path(self) -> str | Path:
        from hvd_core.backends.python_backend import entry_of  # imports NumPy

        return entry_of(resolve_name(self._class_path)).path
