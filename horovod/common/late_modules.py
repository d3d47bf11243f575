"""Loads what a program would load between init() and its first step.

A process of an elastic job calls load() before it asks for a place in a world. Otherwise a spare would load hundreds of
modules in that time, while the other ranks wait for it.
"""

import importlib
import sys
from contextlib import suppress

# By the module that the program has imported.
_LATE = {
    # PyTorch loads its compiler in the constructor of the first optimizer: 800 modules, a second on an idle core.
    "torch": ("torch._dynamo",),
    # Loaded with the first use of hvd.elastic; the other front ends load theirs at once.
    "horovod.torch": ("horovod.torch.elastic",),
    # Loaded by init() where there are several ranks. tests/frontend/test_late_modules.py names those that are missing.
    "hvd_core": (
        "encodings.idna",
        "hvd_core._core",
        "hvd_core.backends._selection.job",
        "hvd_core.backends._selection.choice",
        "hvd_core._bootstrap.hosts",
        "hvd_core._bootstrap.peer_liveness",
        "hvd_core._bootstrap.links",
        "hvd_core._bootstrap.hosts",
        "hvd_core.numpy_api",
        "hvd_core.flight_records",
        "hvd_core._observe.settings",
        "hvd_core._observe.watch.start",
    ),
}


def load() -> None:
    """Load them for the modules that the program has imported. A module that fails is left to the program."""
    for imported, names in _LATE.items():
        if imported in sys.modules:
            for name in names:
                with suppress(Exception):
                    importlib.import_module(name)
