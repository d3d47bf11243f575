"""Does this machine have a driver, a visible device and NCCL?

Processes that may never use a device ask this, and hvd.init() does before scripts choose a device through
CUDA_VISIBLE_DEVICES. So the driver is not initialised, since cuInit reads that variable once and for all: the
driver tells its version without it, devices are counted by their files, and NCCL's library is looked for, not opened.
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
"""The oldest CUDA, as cuDriverGetVersion writes it, whose driver has the functions in csrc/cuda_functions.inc; an NCCL
of 2.19 is built for it or a later one."""

_NUMBERED = re.compile(r"nvidia\d+")
# Systems whose devices have no numbered files: the Windows Subsystem for Linux, and Tegra.
_OTHER_DEVICES = ("dxg", "nvhost-gpu", "nvgpu")


def look(environ: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> Available | Unavailable:
    """Available with a text of the libraries found, or Unavailable with the first thing that is missing."""
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
    """By cuDriverGetVersion, one of the few functions that work before cuInit."""
    version = ctypes.c_int(0)
    try:
        failed = driver.cuDriverGetVersion(ctypes.byref(version))
    except AttributeError:
        return None
    return None if failed else version.value


def _count(devices: Path) -> int | None:
    """The number of devices by their files; None if there are devices that cannot be counted."""
    names = os.listdir(devices)
    numbered = sum(1 for name in names if _NUMBERED.fullmatch(name))
    return numbered or (None if any(name in names for name in _OTHER_DEVICES) else 0)


def _visible(wish: str | None, count: int | None) -> int | None:
    """The number of devices that the driver will show: entries of CUDA_VISIBLE_DEVICES up to the first unknown one."""
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
