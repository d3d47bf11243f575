"""Loads the native module, hvd_core._core, or reports why it cannot be loaded and what to do. Any thread."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

_NAME = "hvd_core._core"


def load() -> ModuleType:
    """The native module. Raises ImportError with the reason and the remedy."""
    try:
        import hvd_core._core
    except ImportError as error:
        raise ImportError(why_not(error), name=error.name, path=error.path) from error
    return hvd_core._core


def why_not(error: ImportError) -> str:
    """The cause of an ImportError of the native module, and the remedy."""
    package = Path(__file__).resolve().parents[1]
    if error.name != _NAME or not (package / "engine").is_dir() or any(package.glob("_core*.so")):
        return f"{error}. Reinstall hvd-core for this Python and platform."
    # Wheels do not contain the sources of the engine, so this is a checkout.
    text = f"the package hvd_core was imported from a source checkout, {package.parent}, whose engine is not compiled"
    hidden = _installed_elsewhere(package)
    if hidden is not None:
        text += f"; it hides the hvd_core that is installed in {hidden.parent}"
    return f"{text}. Run Python from another folder, or compile the engine for the checkout: make install"


def _installed_elsewhere(package: Path) -> Path | None:
    """Another folder hvd_core on Python's path that has the native module."""
    for entry in sys.path:
        other = Path(entry or ".").resolve() / "hvd_core"
        if other != package and any(other.glob("_core*.so")):
            return other
    return None
