"""Reads the user's, the site's and the packaged plugins.toml, and merges them into one configuration.

Files are read from fixed places only, never from the current folder. The reader collects all faults of a file and raises
them together, with the nearest valid key for each. The site's ``allow`` and ``deny`` are a veto over every other choice.
Read once per ``init()``, on the thread that runs it.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvd_core._config.hints import did_you_mean, pip_install
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

TOP = ("selection", "backend", "probe", "affinity", "wheels")
SELECTION = ("backend", "allow", "deny")
BACKEND = ("distribution", "library", "options", "env")
DEVICE = ("operations", *OPERATIONS)


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
    """Read one file. Raises PluginsTomlError that lists all faults of the file, each with its line."""
    try:
        text = path.read_bytes().decode()
        data = tomllib.loads(text)
    except OSError as error:
        raise PluginsTomlError(
            f"horovod: {path} cannot be read: {error.strerror}.\n  fix: make it readable, or remove it"
        ) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        found = re.search(r"(.*) \(at line (\d+), column (\d+)\)", str(error))
        where = f"{path}:{found[2]}" if found else str(path)
        what = f"{found[1]} (column {found[3]})" if found else str(error)
        raise PluginsTomlError(f"horovod: {where}: this is not TOML: {what}.") from None
    return _Reader(path, kind, data, text).file


class _Reader:
    """Goes through the parsed data, collects the faults, and raises them at the end."""

    def __init__(self, path: Path, kind: str, data: dict[str, Any], text: str) -> None:
        self.file = PluginsFile(path, kind)
        self.lines = text.splitlines()
        self.problems: list[tuple[int, str]] = []
        self._top(data)
        self._raise()

    def _raise(self) -> None:
        if not self.problems:
            return
        path = self.file.path
        texts = [f"{path}:{line}: {text}" for line, text in sorted(self.problems)]
        if len(texts) == 1:
            raise PluginsTomlError(f"horovod: {texts[0]}")
        raise PluginsTomlError("\n  ".join([f"horovod: {path} has {len(texts)} problems.", *texts]))

    # Lines and faults.

    def _line(self, path: tuple[str, ...]) -> int:
        """The line of a key, for messages: the standard parser does not give it. Each part of the path is searched from
        the line of the part before it, so an unusual layout may give the line of a key of the same name."""
        at = 0
        for part in path:
            key = re.compile(rf"""(?:^|[\[.{{,])\s*["']?{re.escape(part)}["']?\s*[=.\]]""")
            at = next((n for n in range(at, len(self.lines)) if key.search(self.lines[n])), at)
        return at + 1

    def _at(self, path: tuple[str, ...], value: Any) -> Value:
        return Value(value, f"{self.file.path}:{self._line(path)}")

    def _wrong(self, path: tuple[str, ...], text: str) -> None:
        self.problems.append((self._line(path), text))

    def _unknown(self, path: tuple[str, ...], valid: tuple[str, ...]) -> None:
        key, table = path[-1], ".".join(path[:-1])
        where = f" in [{table}]" if table else ""
        self._wrong(
            path, f"unknown key '{key}'{where}.{did_you_mean(key, valid)}  valid here: {', '.join(valid)}"
        )

    def _mismatch(self, path: tuple[str, ...], wanted: str, found: Any) -> None:
        self._wrong(path, f"{'.'.join(path)} must be {wanted}, but is {_shown(found)}.")

    def _table(self, path: tuple[str, ...], found: Any) -> dict[str, Any]:
        if isinstance(found, dict):
            return found
        self._mismatch(path, "a table", found)
        return {}

    # Values.

    def _checked(
        self, path: tuple[str, ...], found: Any, good: Callable[[Any], bool], wanted: str
    ) -> Value | None:
        if good(found):
            return self._at(path, found)
        self._mismatch(path, wanted, found)
        return None

    def _names(self, path: tuple[str, ...], found: Any, empty: bool = False) -> Value | None:
        names = [found] if isinstance(found, str) and not empty else found
        if (
            isinstance(names, list)
            and (names or empty)
            and all(isinstance(n, str) and _NAME.fullmatch(n) for n in names)
        ):
            return self._at(path, tuple(n.lower() for n in names))
        if isinstance(found, str) and ("," in found or "=" in found):
            self._wrong(
                path,
                f"{'.'.join(path)} must be a name or a list of names, but is {_shown(found)}.  "
                f'A list is ["a", "b"]; for one device type there is [selection.DEVICE].',
            )
        else:
            self._mismatch(path, "a list of names" if empty else "a backend's name or a list of names", found)
        return None

    # Tables.

    def _top(self, data: dict[str, Any]) -> None:
        known = {
            "selection": self._selection,
            "backend": self._backends,
            "probe": self._probe,
            "affinity": self._affinity,
            "wheels": self._wheels,
            **({"devices": self._devices} if self.file.kind == "packaged" else {}),
        }
        for key, found in data.items():
            if key in known:
                known[key](self._table((key,), found))
            elif key == "devices":
                self._wrong((key,), f"[{key}] is part of the packaged file only.")
            else:
                self._unknown((key,), TOP)

    def _selection(self, table: dict[str, Any]) -> None:
        for key, found in table.items():
            path = ("selection", key)
            if key == "backend":
                self._rule(path, None, None, found)
            elif key in ("allow", "deny"):
                if self.file.kind != "site":
                    self._wrong(
                        path,
                        f"'{key}' is valid in the site's file only (/etc/hvd/plugins.toml); "
                        "a user chooses with 'backend'.",
                    )
                else:
                    setattr(self.file, key, self._names(path, found, empty=True))
            elif isinstance(found, dict):
                self._device(key, found)
            else:
                self._unknown(path, (*SELECTION, "[selection.DEVICE]"))

    def _device(self, device: str, table: dict[str, Any]) -> None:
        if not _NAME.fullmatch(device):
            self._wrong(("selection", device), f"'{device}' is not a valid name of a device type.")
        for key, found in table.items():
            path = ("selection", device, key)
            if key == "barrier" and device.lower() != HOST:
                self._wrong(path, NO_BARRIER)
            elif key in DEVICE:
                self._rule(path, device.lower(), None if key == "operations" else key, found)
            else:
                self._unknown(path, DEVICE)

    def _rule(self, path: tuple[str, ...], device: str | None, operation: str | None, found: Any) -> None:
        names = self._names(path, found)
        if names is not None:
            self.file.rules.append(Rule(device, operation, names.value, names.source))

    def _backends(self, table: dict[str, Any]) -> None:
        for name, found in table.items():
            if not _NAME.fullmatch(name):
                self._wrong(("backend", name), f"'{name}' is not a valid backend name.")
            settings = self.file.backends.setdefault(name.lower(), BackendSettings())
            for key, value in self._table(("backend", name), found).items():
                path = ("backend", name, key)
                if key == "distribution":
                    settings.distribution = self._checked(
                        path,
                        value,
                        _is_pin,
                        'a wheel\'s name with or without versions, such as "its-wheel>=0.3"',
                    )
                elif key == "library":
                    settings.library = self._checked(
                        path, value, lambda v: isinstance(v, str) and bool(v), "the name or path of a library"
                    )
                elif key == "options":
                    self._options(path, self._table(path, value), settings.options)
                elif key == "env":
                    self._environment(path, self._table(path, value), settings.env)
                else:
                    self._unknown(path, BACKEND)

    def _options(self, path: tuple[str, ...], table: dict[str, Any], into: dict[str, Value]) -> None:
        for key, value in table.items():
            checked = self._checked(
                (*path, key),
                value,
                lambda v: isinstance(v, (str, int, float)),
                "a string, a number, true or false",
            )
            if checked is not None:
                into[key.lower()] = checked

    def _environment(self, path: tuple[str, ...], table: dict[str, Any], into: dict[str, Value]) -> None:
        for key, value in table.items():
            if not _VARIABLE.fullmatch(key):
                self._wrong((*path, key), f"'{key}' is not a valid name of an environment variable.")
            elif key.upper().startswith("HOROVOD_"):
                # These variables are read before the backends are; a value set here would take effect at the second
                # init() only.
                self._wrong(
                    (*path, key),
                    f"'{key}' is one of Horovod's own variables; env is for variables of the backend's library.  "
                    "A backend's options belong in options, the choice of backends in [selection].",
                )
            checked = self._checked((*path, key), value, lambda v: isinstance(v, str), "a string")
            if checked is not None:
                into[key] = checked

    def _probe(self, table: dict[str, Any]) -> None:
        for key, value in table.items():
            path = ("probe", key)
            if key == "timeout_s":
                self.file.probe_timeout_s = self._checked(
                    path,
                    value,
                    lambda v: (
                        isinstance(v, (int, float))
                        and not isinstance(v, bool)
                        and 0 < v <= _MAX_PROBE_SECONDS
                    ),
                    f"a number of seconds, above 0 and up to {_MAX_PROBE_SECONDS}",
                )
            else:
                self._unknown(path, ("timeout_s",))

    def _affinity(self, table: dict[str, Any]) -> None:
        for key, value in table.items():
            path = ("affinity", key)
            if key == "mode":
                self.file.affinity = self._checked(
                    path, value, lambda v: v in AFFINITY_MODES, f"one of {', '.join(AFFINITY_MODES)}"
                )
            else:
                self._unknown(path, ("mode",))

    def _wheels(self, table: dict[str, Any]) -> None:
        for name, wheel in table.items():
            if self._checked(("wheels", name), wheel, _is_pin, "a wheel's name"):
                self.file.wheels[name.lower()] = wheel

    def _devices(self, table: dict[str, Any]) -> None:
        for device, name in table.items():
            if self._checked(("devices", device), name, lambda v: isinstance(v, str), "a backend's name"):
                self.file.devices[device] = name


def _is_pin(value: Any) -> bool:
    """Whether a value is the name of a distribution, with or without versions."""
    return isinstance(value, str) and bool(_PIN.fullmatch(value.strip()))


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return f"[{', '.join(_shown(v) for v in value)}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


SITE_FILE = Path("/etc/hvd/plugins.toml")
FILE_VARIABLE = "HOROVOD_PLUGINS_TOML"
_log = logging.getLogger("horovod")


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
    files = []
    user = _user_file(environ)
    if user is not None:
        _check_owner(user, "named" if environ.get(FILE_VARIABLE, "").strip() else "user")
        files.append(read(user, "user"))
    if _exists(site):
        _check_owner(site, "site")
        files.append(read(site, "site"))
    files.append(read(packaged_file(), "packaged"))
    return PluginsConfig(tuple(files))


def packaged_file() -> Path:
    """The path of the packaged file. Raises PluginsTomlError if it is missing."""
    package = Path(__file__).resolve().parent.parent
    places = [Path(p) for p in getattr(sys.modules.get("hvd_core"), "__path__", ())] + [package]
    for place in dict.fromkeys(places):
        if (place / "plugins.toml").is_file():
            return place / "plugins.toml"
        # A source tree has the file at its root.
        if (place.parent / "plugins.toml").is_file() and (place.parent / "CMakeLists.txt").is_file():
            return place.parent / "plugins.toml"
    raise PluginsTomlError(
        f"horovod: the packaged plugins.toml is not in this installation.\n"
        f"  searched: {', '.join(str(p) for p in dict.fromkeys(places))}\n"
        f"  fix: reinstall hvd-core: {pip_install('hvd-core', '--force-reinstall', '--no-deps')}"
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


def _exists(path: Path) -> bool:
    # A file without permission to stat it counts as existing; reading it then raises the reason.
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True


_warned: set[str] = set()


def _check_owner(path: Path, kind: str) -> None:
    # These files name libraries to load, so a user with write access to one can run code in the job.
    try:
        found = path.stat()
    except OSError:
        return  # reading the file raises the reason
    if found.st_mode & stat.S_IWOTH:
        raise PluginsTomlError(
            f"horovod: {path} may be written to by any user, and it names libraries to load; it is not read.\n"
            f"  fix: chmod o-w {path}"
        )
    if found.st_uid not in (0, os.geteuid()) and kind != "named":
        owner = "root" if kind == "site" else "you or root"
        text = f"horovod: {path} belongs to user {found.st_uid}, not to {owner}; it is read nevertheless."
        if text not in _warned:
            _warned.add(text)
            _log.warning(text)
