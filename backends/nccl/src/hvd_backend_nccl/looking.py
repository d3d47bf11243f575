"""Whether this machine has what the backend needs: a driver, a device that is visible, NCCL.

Asked in processes that may never use a device, and by hvd.init(), before scripts choose a device through
CUDA_VISIBLE_DEVICES. So the driver is not initialised (cuInit reads that variable once and for all): its version can be
had without, devices are counted by their files, and NCCL's library is looked for and not opened.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping
from pathlib import Path

from hvd_backend_nccl import library
from hvd_core.backends.descriptor import Available, Unavailable

LEAST_CUDA = 11000
"""What the driver has to serve, as cuDriverGetVersion writes it: the driver's functions that csrc/cuda_functions.inc
names, and the oldest CUDA that an NCCL of 2.19 is built for."""

_NUMBERED = re.compile(r"nvidia\d+")
# Where devices have no numbered files: the Windows Subsystem for Linux, and Tegra.
_OTHER_DEVICES = ("dxg", "nvhost-gpu", "nvgpu")


def look(environ: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> Available | Unavailable:
    """The first thing that is missing, or what was found."""
    named = environ.get("HOROVOD_BACKEND_NCCL_CUDA_LIBRARY")
    try:
        driver = ctypes.CDLL(named or "libcuda.so.1", mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        if named:
            return Unavailable(f"option cuda_library: {error}", "correct HOROVOD_BACKEND_NCCL_CUDA_LIBRARY")
        return Unavailable(
            f"there is no NVIDIA driver ({error})",
            "install the driver; a container needs the host's, as with docker run --gpus all",
        )
    version = _cuda_version(driver)
    if version is None:
        return Unavailable(
            f"{named or 'libcuda.so.1'} tells no version (cuDriverGetVersion)", "reinstall the driver"
        )
    if version < LEAST_CUDA:
        return Unavailable(
            f"the NVIDIA driver serves CUDA {_text(version)}, and {_text(LEAST_CUDA)} or newer is needed",
            "install a newer driver",
        )
    # A library that is named need not be the driver whose files these are.
    count = None if named else _count(devices)
    if count == 0:
        return Unavailable(
            "no CUDA device is there: the driver's library is installed, and there is no /dev/nvidia0 or the like",
            "see nvidia-smi; a container has to be started with devices, as with docker run --gpus all",
        )
    visible = _visible(environ.get("CUDA_VISIBLE_DEVICES"), count)
    if visible == 0:
        wish = environ["CUDA_VISIBLE_DEVICES"]
        return Unavailable(
            f"no CUDA device is visible (CUDA_VISIBLE_DEVICES={wish!r})",
            "unset CUDA_VISIBLE_DEVICES, or name devices that nvidia-smi -L lists",
        )
    found = library.find(environ)
    if isinstance(found, Unavailable):
        return found
    if found.cuda and found.cuda > version // 1000:
        return Unavailable(
            f"{found.path} is built for CUDA {found.cuda}, and the NVIDIA driver serves CUDA {_text(version)}",
            f"pip install nvidia-nccl-cu{version // 1000} in its place, or install a newer driver",
        )
    many = "" if visible is None else f", {visible} device{'s' if visible != 1 else ''}"
    return Available(f"{found.text}, driver of CUDA {_text(version)}{many}")


def _cuda_version(driver: ctypes.CDLL) -> int | None:
    """One of the few functions that work before cuInit."""
    version = ctypes.c_int(0)
    try:
        failed = driver.cuDriverGetVersion(ctypes.byref(version))
    except AttributeError:
        return None
    return None if failed else version.value


def _count(devices: Path) -> int | None:
    """Devices by their files; None where they are there and cannot be counted."""
    names = os.listdir(devices)
    numbered = sum(1 for name in names if _NUMBERED.fullmatch(name))
    return numbered or (None if any(name in names for name in _OTHER_DEVICES) else 0)


def _visible(wish: str | None, count: int | None) -> int | None:
    """How many of ``count`` the driver will show: the entries of CUDA_VISIBLE_DEVICES up to the first that names none."""
    if wish is None:
        return count
    entries = []
    for entry in (part.strip() for part in wish.split(",")):
        number = int(entry) if re.fullmatch(r"\d+", entry) else None
        known = number is not None and (count is None or number < count)
        if not known and not entry.startswith(("GPU-", "MIG-", "MIG")):
            break
        entries.append(entry)
    return len(entries)


def _text(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
