"""Packages that tests need: which are installed, without an import.

Folders whose tests import a framework are left out where it is not installed (plugin.py lists them). Other modules
of tests say need("torch").
"""

import importlib.util

import pytest

# Packages of the folders whose modules import them.
NEEDED_BY_FOLDER = {
    "torch": ("torch",),
    "tensorflow": ("tensorflow",),
    "keras": ("keras",),
    "jax": ("jax", "optax"),
    "torch_distributed": ("torch",),
}


def missing_for(folder: str) -> list[str]:
    """The packages that the tests of a folder of tests/ import and that are not installed."""
    return [package for package in NEEDED_BY_FOLDER.get(folder, ()) if not is_installed(package)]


def is_installed(package: str) -> bool:
    """Whether the package can be imported; a folder of tests that has its name does not count."""
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None


def need(*packages: str, reason: str = "") -> None:
    """Skips the test, or the module of tests that is being collected, unless the packages are installed."""
    for package in packages:
        if not is_installed(package):
            pytest.skip(reason or f"{package} is not installed", allow_module_level=True)


# While it collects, pytest asks each object of a module for these.
_ASKED_BY_PYTEST = ("__bases__", "__test__", "__wrapped__", "_mock_name")


class Later:
    """A module that is imported when an attribute of it is first used."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str):
        if attribute in _ASKED_BY_PYTEST:
            raise AttributeError(f"{self!r} has no {attribute}")
        return getattr(importlib.import_module(self._name), attribute)
