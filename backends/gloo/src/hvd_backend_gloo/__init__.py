"""The description of this backend, and a probe that tells whether it can work on this machine.

A job that uses the backend imports this module before any framework: keep it light.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from hvd_core.backends.descriptor import Available, BackendDescriptor, Unavailable

LIBRARY = Path(__file__).resolve().parent / "lib" / "libhvd_backend_gloo.so"


def describe() -> BackendDescriptor:
    """The entry point."""
    return BackendDescriptor.from_file(
        Path(__file__).with_name("gloo.hvd.toml"),
        library=LIBRARY,
        requires=("libgloo.so.0",),
        probe=probe,
    )


def probe() -> Available | Unavailable:
    """Opens the backend's library, so that the loader looks for Gloo. Does not touch the network."""
    try:
        ctypes.CDLL(str(LIBRARY), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        if not LIBRARY.exists():
            return Unavailable(
                f"{LIBRARY.name} has not been built", "install libgloo-dev and build this package again"
            )
        return Unavailable(str(error), "install Gloo: libgloo0 on Debian")
    return Available("Gloo over TCP")
