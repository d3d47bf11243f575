"""From a candidate to what it says about itself, and to whether it works here: the phases describe and probe.

Describing imports the plugin's small module, through stevedore, or directly when the launcher has found it already. Any
thread. What a plugin does wrong becomes a BackendDescribeError that names its wheel, or an Unavailable; it never
escapes as something else.
"""

from __future__ import annotations

import os
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

from hvd_core.backends.candidate import GROUP, WHEEL, Candidate
from hvd_core.backends.descriptor import Available, BackendDescriptor, Unavailable
from hvd_core.backends.errors import BackendDescribeError
from hvd_core.backends.spec import check_version

TABLES = frozenset({"device", "comm"})


class ProbeFailed(Unavailable):
    """Unavailable, and that is not the plugin's word: its probe raised, hung, or answered nonsense."""


def describe(candidate: Candidate) -> BackendDescriptor:
    """What the wheel of ``candidate`` says about the backend.

    Raises BackendDescribeError, with the plugin's own exception as its cause, and BackendVersionMismatch where the
    launcher found another version than this host has.
    """
    if candidate.origin != WHEEL or not candidate.entry:
        raise ValueError(f"backend '{candidate.name}' ({candidate.describe_origin()}) is not from a wheel")
    check_version(candidate)
    try:
        function = _load(candidate)
    except (Exception, SystemExit) as error:
        raise _broken(candidate, f"importing {candidate.entry} failed: {_text(error)}") from error
    if isinstance(function, BackendDescriptor):
        raise _broken(candidate, f"{candidate.entry} is a descriptor; it must be a function that returns one")
    if not callable(function):
        raise _broken(
            candidate, f"{candidate.entry} is {function!r}, not a function that returns a descriptor"
        )
    try:
        descriptor = function()
    except (Exception, SystemExit) as error:
        raise _broken(
            candidate, f"calling {candidate.entry} failed: {_text(error)}", _newer(error)
        ) from error
    if not isinstance(descriptor, BackendDescriptor):
        raise _broken(candidate, f"{candidate.entry} returned {descriptor!r}, not a BackendDescriptor")
    if faults := _faults(candidate.name, descriptor):
        raise _broken(candidate, "its descriptor says " + "; ".join(faults))
    return descriptor


def probe(descriptor: BackendDescriptor, timeout_s: float = 5.0) -> Available | Unavailable:
    """Whether the backend can work on this machine, as it says itself. What it raises, a wrong answer and no answer
    within ``timeout_s`` seconds are Unavailable; then its thread is left behind.
    """
    answer: list[Any] = []

    def ask() -> None:
        try:
            answer.append(descriptor.probe())
        except BaseException as error:
            answer.append(ProbeFailed(f"its probe raised {_text(error)}"))

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
        # A rank of a large job: no metadata are read and no manager is imported.
        module, _, attribute = candidate.entry.partition("[")[0].strip().partition(":")
        target: Any = import_module(module.strip())
        for name in filter(None, attribute.strip().split(".")):
            target = getattr(target, name)
        return target
    from importlib.metadata import EntryPoint

    from stevedore.named import NamedExtensionManager

    point = EntryPoint(candidate.name, candidate.entry, GROUP)
    failures: list[BaseException] = []

    class One(NamedExtensionManager):
        # stevedore would import every wheel that has an entry point of this name, and keep the last.
        def list_entry_points(self) -> list[EntryPoint]:
            return [point]

    manager = One(
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
    fix = fix or f"repair it (pip install --force-reinstall {wheel}), or pip uninstall {wheel}"
    return BackendDescribeError(
        f"horovod: backend '{candidate.name}' ({candidate.describe_origin()}) cannot be described.\n"
        f"  cause: {cause}\n"
        f"  fix: {fix}        check: hvd plugin doctor {candidate.name}"
    )


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _newer(error: BaseException) -> str:
    """The fix for a plugin that speaks of a field of the descriptor which this version does not have."""
    if (
        isinstance(error, TypeError)
        and "BackendDescriptor" in str(error)
        and "keyword argument" in str(error)
    ):
        from hvd_core.version import __version__

        return f"it may be written for a newer hvd-core than this {__version__}: pip install -U hvd-core"
    return ""


def _faults(name: str, found: BackendDescriptor) -> list[str]:
    """What cannot be right about a descriptor. Types are checked, as a plugin's author may not use a type checker."""
    faults = []

    def want(good: bool, field: str, rule: str) -> None:
        if not good:
            faults.append(f"{field} = {getattr(found, field)!r}, {rule}")

    def texts(value: Any) -> bool:
        return isinstance(value, tuple) and all(isinstance(text, str) and text for text in value)

    want(found.name == name, "name", f"but the entry point is named {name!r}")
    abi = found.abi
    whole = isinstance(abi, tuple) and len(abi) == 2 and all(type(part) is int and part >= 0 for part in abi)
    want(whole, "abi", "which is not (major, minor)")
    want(texts(found.devices) and bool(found.devices), "devices", 'which is not a tuple such as ("cpu",)')
    provides = found.provides
    known = isinstance(provides, (set, frozenset)) and bool(provides) and provides <= TABLES
    want(known, "provides", 'which is not a set of "device", "comm"')
    want(type(found.priority) is int, "priority", "which is not a whole number")
    want(texts(found.requires), "requires", "which is not a tuple of texts")
    want(callable(found.probe), "probe", "which is not a function")
    want(isinstance(found.spans_hosts, bool), "spans_hosts", "which is neither True nor False")
    want(texts(found.launchers), "launchers", "which is not a tuple of launchers' names")
    want(found.launch is None or callable(found.launch), "launch", "which is not a function")
    if found.python is not None:
        named = isinstance(found.python, str) and all(found.python.partition(":"))
        want(named, "python", 'which is not "package.module:Class"')
        want(found.library is None, "library", "beside a class in Python; a backend has one of them")
    else:
        path = isinstance(found.library, (str, Path)) and os.path.isabs(found.library)
        want(path, "library", "which is not an absolute path")
    return faults
