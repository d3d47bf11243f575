"""The description of this backend, and a probe that tells whether it can work on this machine.

A job that uses the backend imports this module before any framework: keep it light.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from hvd_core.backends.descriptor import Available, BackendDescriptor, Unavailable

_LIB = Path(__file__).resolve().parent / "lib"


def describe() -> BackendDescriptor:
    """The entry point."""
    return BackendDescriptor.from_file(
        Path(__file__).with_name("eccl_stub.hvd.toml"),
        library=_LIB / "libhvd_backend_eccl_stub.so",
        requires=("libeccl.so >= 3.1",),
        probe=probe,
    )


def vendor_library() -> str:
    """ECCL's library: option ``library`` if it is set, else the simulator in this wheel."""
    return os.environ.get("HOROVOD_BACKEND_ECCL_STUB_LIBRARY") or str(_LIB / "libeccl_sim.so")


def probe() -> Available | Unavailable:
    """Asks the vendor's library how many devices there are. Opens no device."""
    name = vendor_library()
    fix = "set HOROVOD_BACKEND_ECCL_STUB_LIBRARY, or library in [backend.eccl_stub] of plugins.toml"
    try:
        library = ctypes.CDLL(name, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        version, devices = ctypes.c_int(0), ctypes.c_int(0)
        library.ecclGetVersion(ctypes.byref(version))
        library.topsGetDeviceCount(ctypes.byref(devices))
    except (OSError, AttributeError) as error:
        return Unavailable(str(error), fix)
    if devices.value == 0:
        return Unavailable(f"{name} sees no gcu device", "check TOPS_VISIBLE_DEVICES and the driver")
    major, rest = divmod(version.value, 10000)
    return Available(f"{Path(name).name} {major}.{rest // 100}.{rest % 100}, {devices.value} devices")
