"""What hvd-core is told about this backend before it loads anything, and whether it can work on this machine.

Imported by ``hvd plugin list`` and the like in processes that will never use the backend: nothing heavy here.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from hvd_core.backends.descriptor import Available, BackendDescriptor, Unavailable

LIBRARY = Path(__file__).resolve().parent / "lib" / "libhvd_backend_gloo.so"


def describe() -> BackendDescriptor:
    """The entry point."""
    return BackendDescriptor(
        name="gloo",
        abi=(1, 0),
        devices=("cpu",),
        provides=frozenset({"comm"}),
        library=LIBRARY,
        priority=10,
        requires=("libgloo.so.0",),
        probe=probe,
    )


def probe() -> Available | Unavailable:
    """Opens the backend's library, with which the loader finds Gloo; asks the network for nothing."""
    try:
        ctypes.CDLL(str(LIBRARY), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        if not LIBRARY.exists():
            return Unavailable(
                f"{LIBRARY.name} has not been built", "install libgloo-dev and build this package again"
            )
        return Unavailable(str(error), "install Gloo: libgloo0 on Debian")
    return Available("Gloo over TCP")
