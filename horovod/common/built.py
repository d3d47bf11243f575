"""What Horovod's questions mpi_built(), nccl_built(), mpi_enabled(), ... mean where backends are plugins.

"Built" once was decided by a compiler; here a backend is built when it is installed and describes itself, whether or not
this machine has what it needs (`hvd plugin list` says that). Asking reads metadata and imports the small module of the
plugin that is asked about; it opens no device and needs no init(). Answers are kept. Any thread.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from hvd_core.backends import discovery
from hvd_core.backends.candidate import PATH, WHEEL
from hvd_core.backends.descriptor import BackendDescriptor
from hvd_core.backends.discovery import registry
from hvd_core.backends.discovery.describe_and_probe import describe
from hvd_core.backends.discovery.installed_backend import InstalledBackend
from hvd_core.backends.errors import BackendError

_log = logging.getLogger("horovod")
_said: set[str] = set()


def backend(name: str) -> bool:
    """Whether a backend of this name is installed and describes itself."""
    return any(b.name == name and _describes(b) for b in _installed())


def device_type(name: str) -> bool:
    """Whether a backend is installed that opens devices of this type. One that only reads such memory is not enough:
    there would be nobody to order its work behind a stream's."""
    return any(_opens(b, name) for b in _installed())


def nccl_version_code() -> int:
    """NCCL_VERSION_CODE of the library that the backend nccl finds (21903 for 2.19.3); 0 without the backend, and where
    it finds no library. The backend's library is loaded to tell it, which opens no device."""
    candidates = [b.candidate for b in _installed() if b.name == "nccl"]
    return _version_code(candidates[0]) if len(candidates) == 1 else 0


def uses(plan: Any, name: str) -> bool:
    """Whether a job's plan has a backend of this name in it, for any operation on any device type."""
    return any(b.name == name for b in plan.backends())


def warn_about_controller(environ: Mapping[str, str], world: Any, plan: Any) -> None:
    """Say once, by rank 0, that HOROVOD_CONTROLLER=mpi does not choose anything, unless MPI is what the job uses, or our
    own launcher has set the variable (which it does for programs that look at it)."""
    value = environ.get("HOROVOD_CONTROLLER", "").strip().lower()
    if value in ("", "gloo") or "HOROVOD_STORE" in environ or world.rank != 0 or uses(plan, value):
        return
    text = (
        f"horovod: HOROVOD_CONTROLLER={value} is ignored: in every job the ranks agree over connections of hvd-core's "
        "own, which need no MPI. What moves the data is chosen by HOROVOD_BACKEND"
    )
    text += ", mpi for instance." if value == "mpi" else "."
    if text not in _said:
        _said.add(text)
        _log.warning("%s", text)


def _installed() -> tuple[InstalledBackend, ...]:
    """Every backend; of a name that two wheels offer, both. Where they cannot even be looked for, our own."""
    try:
        return discovery.installed()
    except (BackendError, ValueError):
        return registry.embedded()


def _describes(found: InstalledBackend) -> bool:
    if found.candidate.origin == WHEEL:
        return _described(found.candidate) is not None
    # A library under development is not loaded only to be asked for its name.
    return os.path.isfile(str(found.library)) if found.candidate.origin == PATH else True


def _opens(found: InstalledBackend, device: str) -> bool:
    said = _described(found.candidate) if found.candidate.origin == WHEEL else found
    try:
        return said is not None and device in said.devices and "device" in said.provides
    except BackendError:
        return False


@lru_cache(maxsize=256)
def _described(candidate: Any) -> BackendDescriptor | None:
    try:
        return describe(candidate)
    except BackendError:
        return None


@lru_cache(maxsize=16)
def _version_code(candidate: Any) -> int:
    from hvd_core._core import backend_fact

    found = discovery.lookup(candidate.name, "nccl_built()")
    try:
        return int(backend_fact(found.name, str(found.path()), "version_code") or 0)
    except (BackendError, ValueError):
        return 0
