"""The facts about a backend that need no code to run: the file ``NAME.hvd.toml`` beside the entry point's module.

A job decides with this file whether the automatic choice needs the backend. It imports the plugin's module only after
that, so an installed plugin that no job uses can harm none. Keys that this version does not know are ignored.
"""

from __future__ import annotations

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
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
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
