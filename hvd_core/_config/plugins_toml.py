"""Reads the user's, the site's and the packaged plugins.toml, and merges them into one configuration.

Files are read from fixed places only, never from the current folder. The first fault of a file is an error with its line
and the nearest valid key. The site's ``allow`` and ``deny`` are a veto over every other choice. Read once per ``init()``,
on the thread that runs it.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from hvd_core._config.hints import did_you_mean
from hvd_core._config.packaged import package_folders, reinstall
from hvd_core._config.selection_rules import HOST, NO_BARRIER, OPERATIONS, Level, Rule

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

AFFINITY_MODES = ("inherit", "near-device", "off")
_MAX_PROBE_SECONDS = 600
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\s*((===?|[<>]=?|!=|~=)\s*[\w.*+!-]+\s*(,\s*(?=[=<>!~])|$))*")


class PluginsTomlError(ValueError):
    """A configuration file cannot be read, or has an unknown key or a value of the wrong type."""


@dataclass(frozen=True)
class Value:
    """A setting; ``source`` is its file:line."""

    value: Any
    source: str


@dataclass
class BackendSettings:
    """The table [backend.NAME]."""

    distribution: Value | None = None
    library: Value | None = None
    options: dict[str, Value] = field(default_factory=dict)
    env: dict[str, Value] = field(default_factory=dict)


@dataclass
class PluginsFile:
    """The content of one file. ``kind``: user, site or packaged. ``rules``: those of [selection]. Names of backends are
    in lower case."""

    path: Path
    kind: str
    rules: list[Rule] = field(default_factory=list)
    allow: Value | None = None
    deny: Value | None = None
    backends: dict[str, BackendSettings] = field(default_factory=dict)
    probe_timeout_s: Value | None = None
    affinity: Value | None = None
    wheels: dict[str, str] = field(default_factory=dict)
    devices: dict[str, str] = field(default_factory=dict)


def read(path: Path, kind: str) -> PluginsFile:
    """Read one file. Raises PluginsTomlError with the line of the first fault."""
    try:
        text = path.read_bytes().decode()
        data = tomllib.loads(text)
    except OSError as error:
        raise _unreadable(path, error) from None
    except ValueError as error:
        raise PluginsTomlError(f"horovod: {path}: this is not TOML: {error}.") from None
    return _Reader(path, kind, text).read(data)


def _unreadable(path: Path, error: OSError) -> PluginsTomlError:
    text = f"horovod: {path} cannot be read: {error.strerror}.\n  fix: make it readable, or remove it"
    return PluginsTomlError(text)


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:  # in a container HOME may be the folder of another user
        raise _unreadable(path, error) from None
    return True


Key = tuple[str, ...]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_pin(value: Any) -> bool:
    return isinstance(value, str) and bool(_PIN.fullmatch(value.strip()))


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value <= _MAX_PROBE_SECONDS


class _Reader:
    """Checks the parsed data of one file, and finds the line of each key."""

    def __init__(self, path: Path, kind: str, text: str) -> None:
        self.file = PluginsFile(path, kind)
        self.lines = text.splitlines()

    def read(self, data: dict[str, Any]) -> PluginsFile:
        tables: dict[str, Callable[[dict[str, Any]], None]] = {
            "selection": self._selection,
            "backend": self._backends,
            "probe": self._probe,
            "affinity": self._affinity,
            "wheels": self._wheels,
        }
        if self.file.kind == "packaged":
            tables["devices"] = self.file.devices.update
        for name, found in data.items():
            if name == "devices" and name not in tables:
                self._fail((name,), "[devices] is part of the packaged file only.")
            self._known((name,), tables)
            tables[name](self._table((name,), found))
        return self.file

    def _source(self, key: Key) -> str:
        """File and line of a key, for messages: the standard parser does not give it. Each part is searched from the
        line of the part before it, so an unusual layout may give the line of a key of the same name."""
        at = 0
        for part in key:
            wanted = re.compile(rf"""(?:^|[\[.{{,])\s*["']?{re.escape(part)}["']?\s*[=.\]]""")
            at = next((n for n in range(at, len(self.lines)) if wanted.search(self.lines[n])), at)
        return f"{self.file.path}:{at + 1}"

    def _fail(self, key: Key, text: str) -> NoReturn:
        raise PluginsTomlError(f"horovod: {self._source(key)}: {text}")

    def _known(self, key: Key, valid: Iterable[str]) -> None:
        *table, name = key
        if name not in valid:
            where = f" in [{'.'.join(table)}]" if table else ""
            near = did_you_mean(name, valid)
            self._fail(key, f"unknown key '{name}'{where}.{near}  valid here: {', '.join(valid)}")

    def _value(self, key: Key, found: Any, good: Callable[[Any], bool], wanted: str) -> Value:
        if not good(found):
            shown = str(found).lower() if isinstance(found, bool) else repr(found)
            self._fail(key, f"{'.'.join(key)} must be {wanted}, but is {shown}.")
        return Value(found, self._source(key))

    def _table(self, key: Key, found: Any) -> dict[str, Any]:
        table: dict[str, Any] = self._value(key, found, lambda v: isinstance(v, dict), "a table").value
        return table

    def _names(self, key: Key, found: Any, empty: bool = False) -> Value:
        def good(names: Any) -> bool:
            return (
                isinstance(names, list)
                and (empty or bool(names))
                and all(isinstance(name, str) and _NAME.fullmatch(name) for name in names)
            )

        wanted = 'a list of names, such as ["a", "b"]'
        if not empty:
            found = [found] if good([found]) else found
            wanted = f"a backend's name or {wanted} (for one device type there is [selection.DEVICE])"
        names = self._value(key, found, good, wanted)
        return Value(tuple(name.lower() for name in names.value), names.source)

    def _selection(self, table: dict[str, Any]) -> None:
        for name, found in table.items():
            key = ("selection", name)
            if name == "backend":
                self._rule(key, None, None, found)
            elif name in ("allow", "deny"):
                if self.file.kind != "site":
                    self._fail(key, f"'{name}' is valid in the site's file only ({SITE_FILE}); "
                                    "a user chooses with 'backend'.")  # fmt: skip
                setattr(self.file, name, self._names(key, found, empty=True))
            elif isinstance(found, dict):
                self._device(name, found)
            else:
                self._known(key, ("backend", "allow", "deny", "[selection.DEVICE]"))

    def _device(self, device: str, table: dict[str, Any]) -> None:
        if not _NAME.fullmatch(device):
            self._fail(("selection", device), f"'{device}' is not a valid name of a device type.")
        for name, found in table.items():
            key = ("selection", device, name)
            self._known(key, ("operations", *OPERATIONS))
            if name == "barrier" and device.lower() != HOST:
                self._fail(key, NO_BARRIER)
            self._rule(key, device.lower(), None if name == "operations" else name, found)

    def _rule(self, key: Key, device: str | None, operation: str | None, found: Any) -> None:
        names = self._names(key, found)
        self.file.rules.append(Rule(device, operation, names.value, names.source))

    def _backends(self, table: dict[str, Any]) -> None:
        for name, found in table.items():
            if not _NAME.fullmatch(name):
                self._fail(("backend", name), f"'{name}' is not a valid backend name.")
            settings = self.file.backends.setdefault(name.lower(), BackendSettings())
            for field_name, value in self._table(("backend", name), found).items():
                key = ("backend", name, field_name)
                self._known(key, ("distribution", "library", "options", "env"))
                if field_name == "distribution":
                    wanted = 'a wheel\'s name with or without versions, such as "its-wheel>=0.3"'
                    settings.distribution = self._value(key, value, _is_pin, wanted)
                elif field_name == "library":
                    wanted = "the name or path of a library"
                    settings.library = self._value(key, value, lambda v: _is_text(v) and bool(v), wanted)
                elif field_name == "options":
                    wanted = "a string, a number, true or false"
                    for option, one in self._table(key, value).items():
                        settings.options[option.lower()] = self._value(
                            (*key, option), one, lambda v: isinstance(v, (str, int, float)), wanted
                        )
                else:
                    for variable, text in self._table(key, value).items():
                        settings.env[variable] = self._variable((*key, variable), text)

    def _variable(self, key: Key, text: Any) -> Value:
        if not _VARIABLE.fullmatch(key[-1]):
            self._fail(key, f"'{key[-1]}' is not a valid name of an environment variable.")
        if key[-1].upper().startswith("HOROVOD_"):
            # They are read before the backends are: a value from here would take effect at the second init() only.
            self._fail(
                key,
                f"'{key[-1]}' is one of Horovod's own variables; env is for variables of the backend's library.  "
                "A backend's options belong in options, the choice of backends in [selection].",
            )
        return self._value(key, text, _is_text, "a string")

    def _probe(self, table: dict[str, Any]) -> None:
        for name, found in table.items():
            self._known(("probe", name), ("timeout_s",))
            wanted = f"a number of seconds, above 0 and up to {_MAX_PROBE_SECONDS}"
            self.file.probe_timeout_s = self._value(("probe", name), found, _is_time, wanted)

    def _affinity(self, table: dict[str, Any]) -> None:
        for name, found in table.items():
            self._known(("affinity", name), ("mode",))
            wanted = f"one of {', '.join(AFFINITY_MODES)}"
            self.file.affinity = self._value(("affinity", name), found, AFFINITY_MODES.__contains__, wanted)

    def _wheels(self, table: dict[str, Any]) -> None:
        for name, found in table.items():
            wheel = self._value(("wheels", name), found, _is_pin, "a wheel's name")
            self.file.wheels[name.lower()] = wheel.value


SITE_FILE = Path("/etc/hvd/plugins.toml")
FILE_VARIABLE = "HOROVOD_PLUGINS_TOML"


@dataclass(frozen=True)
class PluginsConfig:
    """All files that exist, the strongest first."""

    files: tuple[PluginsFile, ...]

    def levels(self) -> tuple[Level, ...]:
        """The files' rules, as levels for selection_rules.ladder()."""
        return tuple(Level(str(f.path), tuple(f.rules)) for f in self.files)

    def vetoed_by(self, name: str) -> str | None:
        """Why the site forbids a backend, with file and line; None if it does not."""
        for file in self.files:
            if file.deny is not None and name in file.deny.value:
                return f"{file.deny.source} denies it (deny = {', '.join(file.deny.value)})"
            if file.allow is not None and name not in file.allow.value:
                return f"{file.allow.source} allows {', '.join(file.allow.value) or 'none'} only"
        return None

    def policy(self) -> str:
        """The site's policy for messages: ``/etc/hvd/plugins.toml (allow = a, b)``; "" if the site has no policy."""
        for file in self.files:
            parts = [
                f"{key} = {', '.join(value.value) or 'none'}"
                for key, value in (("allow", file.allow), ("deny", file.deny))
                if value is not None and (value.value or key == "allow")
            ]
            if parts:
                return f"{file.path} ({'; '.join(parts)})"
        return ""

    def backend(self, name: str) -> BackendSettings:
        """The tables [backend.NAME] of all files, merged. For each setting the strongest file wins."""
        merged = BackendSettings()
        for file in reversed(self.files):
            found = file.backends.get(name)
            if found is None:
                continue
            merged.distribution = found.distribution or merged.distribution
            merged.library = found.library or merged.library
            merged.options |= found.options
            merged.env |= found.env
        return merged

    @property
    def probe_timeout_s(self) -> float:
        """[probe] timeout_s: the time limit of a backend's probe, in seconds."""
        return float(next((f.probe_timeout_s.value for f in self.files if f.probe_timeout_s), 5.0))

    @property
    def affinity_mode(self) -> Value:
        """[affinity] mode."""
        return next((f.affinity for f in self.files if f.affinity), Value("inherit", "built in"))

    @property
    def wheels(self) -> dict[str, str]:
        """Backend name -> wheel, for messages that tell how to install a backend. The strongest file wins."""
        return {name: wheel for f in reversed(self.files) for name, wheel in f.wheels.items()}


def wheel_for_device(device_type: str) -> str | None:
    """The wheel with a backend for devices of this type; None if this distribution knows none. Raises
    PluginsTomlError."""
    packaged = read(packaged_file(), "packaged")
    return packaged.wheels.get(packaged.devices.get(device_type, ""))


def load(environ: Mapping[str, str], site: Path = SITE_FILE) -> PluginsConfig:
    """Read the files.

    Raises PluginsTomlError if the file that HOROVOD_PLUGINS_TOML names does not exist or is named by a relative path,
    if any user may write to a file, and if a file has faults.
    """
    found = [
        (_user_file(environ), "user"),
        (site if _exists(site) else None, "site"),
        (packaged_file(), "packaged"),
    ]
    files = []
    for path, kind in found:
        if path is not None:
            if kind != "packaged":
                _check_writers(path)
            files.append(read(path, kind))
    return PluginsConfig(tuple(files))


def packaged_file() -> Path:
    """The path of the packaged file. Raises PluginsTomlError if it is missing."""
    folders = package_folders()
    for folder in folders:
        if (folder / "plugins.toml").is_file():
            return folder / "plugins.toml"
        # A source tree has the file at its root.
        if (folder.parent / "plugins.toml").is_file() and (folder.parent / "CMakeLists.txt").is_file():
            return folder.parent / "plugins.toml"
    raise PluginsTomlError(
        f"horovod: the packaged plugins.toml is not in this installation.\n"
        f"  searched: {', '.join(map(str, folders))}\n"
        f"  fix: reinstall hvd-core: {reinstall()}"
    )


def _user_file(environ: Mapping[str, str]) -> Path | None:
    named = environ.get(FILE_VARIABLE, "").strip()
    if named:
        if not os.path.isabs(named):
            raise PluginsTomlError(
                f"horovod: {FILE_VARIABLE}={named} is not an absolute path; configuration is not taken from the current "
                f"folder.\n  fix: {FILE_VARIABLE}=/full/path/{Path(named).name}"
            )
        if not _exists(Path(named)):
            raise PluginsTomlError(
                f"horovod: {FILE_VARIABLE}={named}: there is no such file.\n"
                f"  fix: correct or unset {FILE_VARIABLE}; without it, ~/.config/hvd/plugins.toml is read where it exists"
            )
        return Path(named)
    base = environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        home = environ.get("HOME", "")
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, ".config")
    path = Path(base) / "hvd" / "plugins.toml"
    return path if _exists(path) else None


def _check_writers(path: Path) -> None:
    # These files name libraries to load, so a user with write access to one can run code in the job.
    if path.stat().st_mode & stat.S_IWOTH:
        raise PluginsTomlError(
            f"horovod: {path} may be written to by any user, and it names libraries to load; it is not read.\n"
            f"  fix: chmod o-w {path}"
        )
