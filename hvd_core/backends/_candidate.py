"""A backend's name, origin and static description: all that is known before any of its code is imported.

A wheel's static description is the file ``NAME.hvd.toml`` beside the entry point's module. A job decides with it
whether the automatic choice needs the backend, and imports the plugin's module only after that, so an installed plugin
that no job uses can harm none. Keys that this version does not know are ignored.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

TABLES = frozenset({"device", "comm"})
SUFFIX = ".hvd.toml"


def is_texts(value: Any) -> bool:
    """Whether a value is a tuple of texts that are not empty."""
    return isinstance(value, tuple) and all(isinstance(text, str) and text for text in value)


Rules = dict[str, tuple[Callable[[Any], bool], str]]

RULES: Rules = {
    "abi": (
        lambda v: isinstance(v, tuple) and len(v) == 2 and all(type(part) is int and part >= 0 for part in v),
        "(major, minor)",
    ),
    "devices": (lambda v: is_texts(v) and bool(v), "a tuple of device types, such as 'cpu'"),
    "provides": (
        lambda v: isinstance(v, (set, frozenset)) and bool(v) and v <= TABLES,
        'a set of "device", "comm"',
    ),
    "priority": (lambda v: type(v) is int, "a whole number"),
    "spans_hosts": (lambda v: isinstance(v, bool), "true or false"),
    "launchers": (is_texts, "a tuple of launchers' names"),
    "device_files": (is_texts, "a tuple of patterns, such as '/dev/acme*'"),
}
"""Field -> (whether a value is valid, a valid value in words); for static descriptions and for descriptors."""


def faults(
    values: Mapping[str, Any], rules: Iterable[tuple[str, tuple[Callable[[Any], bool], str]]]
) -> list[str]:
    """The values that break their rule, one text each."""
    return [
        f"{key} = {values[key]!r}, which is not {rule}"
        for key, (good, rule) in rules
        if key in values and not good(values[key])
    ]


@dataclass(frozen=True)
class StaticDescription:
    """The keys of the file; the first six are fields of BackendDescriptor too, with the same meaning.

    ``device_files``: patterns of paths, such as ``/dev/acme*``. One of them exists on a machine that has the devices. The
    automatic choice considers the backend for device memory only there; without patterns the backend must be named.
    """

    abi: tuple[int, int]
    devices: tuple[str, ...]
    provides: frozenset[str]
    priority: int = 50
    spans_hosts: bool = True
    launchers: tuple[str, ...] = ()
    device_files: tuple[str, ...] = ()

    def differences(self, descriptor: Any) -> list[str]:
        """The fields in which a descriptor contradicts this description, one text each. A descriptor may have more device
        types, because they may depend on this machine."""
        faults = [
            f"{key} = {getattr(descriptor, key)!r}, but its {descriptor.name}{SUFFIX} says {getattr(self, key)!r}"
            for key in ("abi", "provides", "priority", "spans_hosts", "launchers")
            if getattr(descriptor, key) != getattr(self, key)
        ]
        if not set(self.devices) <= set(descriptor.devices):
            faults.append(
                f"devices = {descriptor.devices!r}, but its {descriptor.name}{SUFFIX} says {self.devices!r}"
            )
        return faults

    def as_row(self) -> dict[str, Any]:
        """The description as JSON can hold it; of_table() reads it."""
        return asdict(self) | {"provides": sorted(self.provides)}


def read_file(path: str | Path) -> StaticDescription:
    """The description in a file. Raises ValueError, which names the file and each fault; OSError."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        return of_table(tomllib.loads(Path(path).read_text(encoding="utf-8")))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from None


def of_table(table: Mapping[str, Any]) -> StaticDescription:
    """The description in a table of TOML or JSON. Raises ValueError for keys that are missing or have invalid values."""
    known = [field.name for field in fields(StaticDescription) if field.name in table]
    values: dict[str, Any] = {
        key: tuple(table[key]) if isinstance(table[key], list) else table[key] for key in known
    }
    if is_texts(values.get("provides")):
        values["provides"] = frozenset(values["provides"])
    wrong = [f"the key {key} is missing" for key in ("abi", "devices", "provides") if key not in values]
    wrong += [fault.replace("a tuple", "a list") for fault in faults(values, RULES.items())]
    if wrong:
        raise ValueError("; ".join(wrong))
    return StaticDescription(**values)


GROUP = "hvd_core.backends"  # the entry-point group that plugins announce themselves in
NAME = re.compile(r"[a-z0-9_-]{1,32}")

EMBEDDED, WHEEL, PATH, PYTHON = "embedded", "wheel", "path", "python"


@dataclass(frozen=True)
class Candidate:
    """A backend that can be selected by its name.

    ``origin``: "embedded"; "wheel", an entry point of an installed distribution; "path", a library that
    HOROVOD_BACKEND_PATH_<NAME> names; "python", a class registered in this process.
    """

    name: str
    origin: str
    distribution: str | None = None
    version: str | None = None
    entry: str | None = None
    """``module:attribute`` of the entry point."""
    location: str | None = None
    """The folder in which the distribution's metadata lie; for a path, the library."""
    metadata: str | None = None
    """Name of the folder with the distribution's metadata, for instance ``x-1.0.dist-info``."""
    for_tests: bool = False
    """Whether the backend exists for tests only; messages do not list it."""
    from_spec: bool = False
    """Whether the launcher found it, perhaps on another host."""
    static: StaticDescription | None = None
    """What the wheel says about the backend without running code; None if the wheel says nothing, or nothing readable."""

    def describe_origin(self) -> str:
        """``embedded``, ``hvd-backend-x 0.3.0``, ``HOROVOD_BACKEND_PATH_X`` or ``registered in Python``."""
        if self.origin == WHEEL:
            return f"{self.distribution} {self.version}"
        if self.origin == PATH:
            return f"HOROVOD_BACKEND_PATH_{self.name.upper()}"
        return "registered in Python" if self.origin == PYTHON else self.origin

    def describe_place(self) -> str:
        """``hvd-backend-x 0.3.0 in /usr/lib/python3/dist-packages``: tells two distributions of one name apart."""
        return self.describe_origin() + (f" in {self.location}" if self.location else "")


@dataclass(frozen=True)
class Problem:
    """An entry point of the group that is not used, with the reason. It does not stop a job by itself.

    ``kind``: "duplicate", "current-directory", "reserved" (an embedded backend has the name), "name" (not a valid name),
    "metadata" (unreadable), "description" (its NAME.hvd.toml has faults), "broken" (the backend cannot be described or
    loaded).
    """

    name: str
    kind: str
    text: str
