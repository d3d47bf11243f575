"""Finds the NCCL library that this backend would use, without opening it.

The same places in the same order as csrc/nccl_find.cc, which decides. Nothing is loaded here: a process that considers
the backend and then does without it must stay free to load another NCCL, for example with PyTorch.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hvd_core.backends.descriptor import Unavailable

NAME = "libnccl.so.2"
LEAST_VERSION = (2, 19)
_LOADED = re.compile(r"/\S*/libnccl\.so[.\d]*$", re.MULTILINE)
_IN_CACHE = re.compile(rb"(/[^\0]*/libnccl\.so\.2)\0")
_WHEEL = re.compile(r"nvidia_nccl_cu(\d+)-([\d.]+)\.dist-info")
_FIX = (
    "pip install nvidia-nccl-cu13 (nvidia-nccl-cu12 for a driver of CUDA 12), or name one: "
    "HOROVOD_BACKEND_NCCL_LIBRARY=/path/libnccl.so.2"
)


@dataclass(frozen=True)
class Found:
    """A library: its file, its version if it is known without opening it, and the major version of the CUDA that it is
    built for (0: unknown)."""

    path: str
    version: tuple[int, ...] = ()
    cuda: int = 0

    @property
    def text(self) -> str:
        """``libnccl.so.2 2.27.3 (/path)``."""
        return " ".join(filter(None, (NAME, ".".join(map(str, self.version)), f"({self.path})")))


def find(environ: Mapping[str, str] = os.environ) -> Found | Unavailable:
    """The library that the backend would use."""
    wish = environ.get("HOROVOD_BACKEND_NCCL_LIBRARY")
    loaded = loaded_library()
    if wish and "/" in wish and not os.path.exists(wish):
        return Unavailable(
            f"option library: there is no file {wish!r}",
            "correct HOROVOD_BACKEND_NCCL_LIBRARY (or library in plugins.toml)",
        )
    if wish and "/" in wish and loaded and not os.path.samefile(wish, loaded):
        return Unavailable(
            f"option library names {wish!r}, but the process has loaded {loaded!r} (PyTorch's?), and two copies of NCCL "
            "in one process do not get along",
            "leave the option out, or load the other one first",
        )
    path = loaded or wish or next((p for p in places(environ) if os.path.exists(p)), None)
    if path is None:
        return Unavailable("no NCCL library was found", _FIX)
    found = _described(path, path == loaded)
    if found.version and found.version[:2] < LEAST_VERSION:
        version = ".".join(map(str, found.version))
        return Unavailable(f"{path} is NCCL {version}, and 2.19 or newer is needed", _FIX)
    return found


def loaded_library() -> str | None:
    """The path of the NCCL library in this process."""
    match = _LOADED.search(Path("/proc/self/maps").read_text())
    return match[0] if match else None


def places(environ: Mapping[str, str]) -> Iterator[str]:
    """Possible files, the likeliest first; they need not exist."""
    if home := environ.get("HOROVOD_NCCL_HOME"):
        yield from (f"{home}/lib/{NAME}", f"{home}/lib64/{NAME}")
    if folder := environ.get("HOROVOD_NCCL_LIB"):
        yield f"{folder}/{NAME}"
    for site in sys.path:
        if site:
            yield f"{site}/nvidia/nccl/lib/{NAME}"
    for folder in filter(None, environ.get("LD_LIBRARY_PATH", "").split(":")):
        yield f"{folder}/{NAME}"
    try:
        cache = Path("/etc/ld.so.cache").read_bytes()
    except OSError:
        cache = b""
    yield from (os.fsdecode(path) for path in _IN_CACHE.findall(cache))
    yield from (f"{folder}/{NAME}" for folder in ("/lib64", "/usr/lib64", "/lib", "/usr/lib"))


def _described(path: str, loaded: bool) -> Found:
    """A library by the wheel or the path around its file; a loaded library tells its version itself."""
    site, _, in_wheel = path.rpartition("/nvidia/nccl/lib/")
    wheel = None
    if in_wheel and os.path.isdir(site):
        wheel = next(filter(None, map(_WHEEL.fullmatch, os.listdir(site))), None)
    version = _told(path) if loaded else wheel[2] if wheel else _numbers_of(os.path.realpath(path))
    return Found(path, tuple(map(int, version.split("."))) if version else (), int(wheel[1]) if wheel else 0)


def _told(path: str) -> str:
    code = ctypes.c_int(0)
    try:
        ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW).ncclGetVersion(ctypes.byref(code))
    except (OSError, AttributeError):
        return ""
    n = code.value
    return (
        f"{n // 10000}.{n // 100 % 100}.{n % 100}" if n >= 10000 else f"{n // 1000}.{n // 100 % 10}.{n % 100}"
    )


def _numbers_of(path: str) -> str:
    """The version in a file's name: 2.21.5 of libnccl.so.2.21.5; empty if there is none there."""
    match = re.search(r"libnccl\.so\.(\d+\.\d+\.\d+)$", path)
    return match[1] if match else ""
