"""Merges the user's, the site's and the packaged plugins.toml into one configuration.

Files are read from fixed places only, never from the current folder. The site's ``allow`` and ``deny`` are a veto over
every other choice. Read once per ``init()``, on the thread that runs it.
"""

from __future__ import annotations

import logging
import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hvd_core._config.plugins_file import BackendSettings, PluginsFile, PluginsTomlError, Value, read
from hvd_core._config.selection_rules import Level
from hvd_core._config.wheels import pip_install

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
