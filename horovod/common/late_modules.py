"""Loads what a framework would load when a program makes its first optimizer.

A process of an elastic job calls load() before it asks for a place in a world. Otherwise a spare would load hundreds of
modules between init() and its first operation, while the other ranks wait for it.
"""

import importlib
import sys
from contextlib import suppress

# PyTorch loads its compiler in the constructor of the first optimizer: 800 modules, a second on an idle core.
_LATE = {"torch": ("torch._dynamo",)}


def load() -> None:
    """Load them for the frameworks that the program has imported. A module that fails is left to the program."""
    for framework, names in _LATE.items():
        if framework in sys.modules:
            for name in names:
                with suppress(Exception):
                    importlib.import_module(name)
