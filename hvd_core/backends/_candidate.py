"""A backend's name, origin and static description: all that is known before any of its code is imported.

A wheel's static description is the file ``NAME.hvd.toml`` beside the entry point's module. A job decides with it
whether the automatic choice needs the backend, and imports the plugin's module only after that, so an installed plugin
that no job uses can harm none. Keys that this version does not know are ignored.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TABLES = frozenset({"device", "comm"})
SUFFIX = ".hvd.toml"
_LONGEST_FILE = 16 << 10  # bytes; launchers hand the contents on to their ranks in a variable


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

    with open(path, "rb") as file:
        found = file.read(_LONGEST_FILE + 1)
    try:
        if len(found) > _LONGEST_FILE:
            raise ValueError(f"it has more than {_LONGEST_FILE} bytes")
        return of_table(tomllib.loads(found.decode()))
    except RecursionError:
        raise ValueError(f"{path}: its lists or tables are nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def of_table(table: Mapping[str, Any]) -> StaticDescription:
    """The description in a table of TOML or JSON. Raises ValueError for keys that are missing or of another type."""
    faults = []

    def value(key: str, kind: type, rule: str, default: Any = None) -> Any:
        found = table.get(key, default)
        good = isinstance(found, list if kind is tuple else kind) and (
            kind is bool or not isinstance(found, bool)
        )
        if kind is tuple and isinstance(found, tuple):
            good = True
        if good and kind is tuple and key != "abi":
            good = all(isinstance(text, str) and text for text in found)
        if not good:
            faults.append(f"{key} = {found!r} is not {rule}" if key in table else f"the key {key} is missing")
        return found

    texts = 'a list of texts, such as ["cpu"]'
    abi = value("abi", tuple, "[major, minor]")
    devices = value("devices", tuple, texts)
    provides = value("provides", tuple, 'a list of "device", "comm"')
    rest = {
        "priority": value("priority", int, "a whole number", 50),
        "spans_hosts": value("spans_hosts", bool, "true or false", True),
        "launchers": value("launchers", tuple, "a list of launchers' names", ()),
        "device_files": value("device_files", tuple, 'a list of patterns, such as ["/dev/acme*"]', ()),
    }
    if not faults and (len(abi) != 2 or not all(type(part) is int and part >= 0 for part in abi)):
        faults.append(f"abi = {abi!r} is not [major, minor]")
    if not faults and (not devices or not provides or not set(provides) <= TABLES):
        faults.append(f"devices = {devices!r} or provides = {provides!r} is empty or has an unknown word")
    if faults:
        raise ValueError("; ".join(faults))
    return StaticDescription(
        tuple(abi),
        tuple(devices),
        frozenset(provides),
        rest["priority"],
        rest["spans_hosts"],
        tuple(rest["launchers"]),
        tuple(rest["device_files"]),
    )


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
