"""The folders with the files that the wheel has beside its code: libraries, pages, templates, plugins.toml."""

from __future__ import annotations

import functools
import sys
import sysconfig
from pathlib import Path

from hvd_core._config.hints import pip_install


def package_folders() -> list[Path]:
    """The folders of the package ``hvd_core``. An editable installation has one with sources and one with built
    files; both are on the package's path, or at least in site-packages."""
    own = [Path(p) for p in getattr(sys.modules.get("hvd_core"), "__path__", ())]
    return list(dict.fromkeys([*own, *_default_folders()]))


@functools.cache
def _default_folders() -> tuple[Path, Path]:
    return Path(__file__).resolve().parents[1], Path(sysconfig.get_path("platlib")) / "hvd_core"


def reinstall() -> str:
    """The command that brings back a file that is missing in this installation."""
    return pip_install("hvd-core", "--force-reinstall", "--no-deps")
