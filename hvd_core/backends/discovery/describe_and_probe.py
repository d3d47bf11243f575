"""The phases describe and probe: gets a plugin's descriptor, and asks whether the backend works on this machine.

Describing imports the plugin's small module, through stevedore, or directly if the launcher has found it already. Any
thread. Every exception of a plugin becomes a BackendDescribeError that names its wheel, or an Unavailable.
"""

from __future__ import annotations

import os
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

from hvd_core._config.wheels import pip_install
from hvd_core.backends import phases
from hvd_core.backends.candidate import GROUP, WHEEL, Candidate
from hvd_core.backends.descriptor import Available, BackendDescriptor, Unavailable
from hvd_core.backends.discovery.backend_spec import check_version
from hvd_core.backends.errors import BackendDescribeError
from hvd_core.backends.messages import of_exception
from hvd_core.backends.static_description import TABLES
from hvd_core.version import __version__


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
    with phases.running(candidate.name, phases.DESCRIBE):
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

    with phases.running(descriptor.name, phases.PROBE):
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
    assert candidate.entry is not None
    if candidate.from_spec:
        # A rank of a large job reads no metadata and does not import stevedore.
        module, _, attribute = candidate.entry.partition("[")[0].strip().partition(":")
        target: Any = import_module(module.strip())
        for name in filter(None, attribute.strip().split(".")):
            target = getattr(target, name)
        return target
    from importlib.metadata import EntryPoint

    from stevedore.named import NamedExtensionManager

    point = EntryPoint(candidate.name, candidate.entry, GROUP)
    failures: list[BaseException] = []

    class SingleEntryPoint(NamedExtensionManager):
        # By itself stevedore imports every wheel that has an entry point of this name, and keeps the last.
        def list_entry_points(self) -> list[EntryPoint]:
            return [point]

    manager = SingleEntryPoint(
        GROUP,
        names=[candidate.name],
        on_load_failure_callback=lambda manager, point, error: failures.append(error),
        on_missing_entrypoints_callback=None,
    )
    if failures:
        raise failures[0]
    return manager[candidate.name].plugin


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
