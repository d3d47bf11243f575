"""The answers to mpi_built(), nccl_built(), mpi_enabled(), ... in a system whose backends are plugins.

In the original a compiler decided what is built in. Here a backend counts as built when it is installed and describes
itself, whether or not this machine has the libraries and devices that it needs (`hvd plugin list` shows that). A
question reads metadata and imports the small module of one plugin; it opens no device and needs no init(). Any thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from hvd_core.backends import _discovery
from hvd_core.backends._candidate import PATH, WHEEL
from hvd_core.backends._discovery import registry
from hvd_core.backends._discovery.installed_backend import InstalledBackend, describe
from hvd_core.backends.descriptor import BackendDescriptor
from hvd_core.backends.errors import BackendError

_log = logging.getLogger("horovod")
_logged: set[str] = set()


def backend(name: str) -> bool:
    """Whether a backend of this name is installed and describes itself."""
    return any(b.name == name and _description(b) is not None for b in _installed())


def device_type(name: str) -> bool:
    """Whether a backend is installed that opens devices of this type.

    A backend that only reads memory of that type is not enough: without an open device nothing orders its work behind
    the work of a stream.
    """
    for found in map(_description, _installed()):
        with contextlib.suppress(BackendError):
            if found is not None and name in found.devices and "device" in found.provides:
                return True
    return False


def nccl_version_code() -> int:
    """NCCL_VERSION_CODE of the library that the backend nccl finds (21903 for 2.19.3); 0 without the backend, and where
    it finds no library. The question loads the backend's library, which opens no device."""
    from hvd_core._core import backend_fact

    if [b.name for b in _installed()].count("nccl") != 1:
        return 0
    try:
        found = _discovery.lookup("nccl", "nccl_built()")
        return int(backend_fact(found.name, str(found.path()), "version_code") or 0)
    except (BackendError, ValueError):
        return 0


def uses(plan: Any, name: str) -> bool:
    """Whether a job's backend plan names this backend, for any operation on any device type."""
    return any(b.name == name for b in plan.backends())


def warn_about_controller(environ: Mapping[str, str], world: Any, plan: Any) -> None:
    """Log once, on rank 0, that HOROVOD_CONTROLLER=mpi chooses nothing. Not if the job uses MPI, and not if our own
    launcher has set the variable, for programs that read it."""
    value = environ.get("HOROVOD_CONTROLLER", "").strip().lower()
    if value in ("", "gloo") or "HOROVOD_STORE" in environ or world.rank != 0 or uses(plan, value):
        return
    text = (
        f"horovod: HOROVOD_CONTROLLER={value} is ignored: in every job the ranks agree over connections of hvd-core's "
        "own, which need no MPI. HOROVOD_BACKEND chooses the backend that moves the data"
    )
    text += ", mpi for instance." if value == "mpi" else "."
    if text not in _logged:
        _logged.add(text)
        _log.warning("%s", text)


def _installed() -> tuple[InstalledBackend, ...]:
    """Every backend; both, if two wheels offer a backend of one name. Our own, if the search itself fails."""
    try:
        return _discovery.installed()
    except (BackendError, ValueError):
        return registry.embedded()


def _description(found: InstalledBackend) -> InstalledBackend | BackendDescriptor | None:
    """What a backend says of itself; None if it cannot."""
    if found.candidate.origin == WHEEL:
        return _of_wheel(found.candidate)
    # A library under development is not loaded for its name alone.
    return found if found.candidate.origin != PATH or os.path.isfile(str(found.library)) else None


@lru_cache(maxsize=256)
def _of_wheel(candidate: Any) -> BackendDescriptor | None:
    try:
        return describe(candidate)
    except BackendError:
        return None
