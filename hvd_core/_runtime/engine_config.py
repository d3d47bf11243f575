"""EngineConfig: all that init() gives to the engine, in one typed object. The native module reads it as a dict
(engine/python/engine_config.cc), which as_dict() makes at the one place where an engine is created."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from hvd_core._config.settings import EngineSettings, variable_of

if TYPE_CHECKING:
    from hvd_core._bootstrap.links import Link

Library: TypeAlias = "tuple[str, str | None]"
"""Name and path of a backend's library."""


@dataclass(frozen=True)
class EngineConfig:
    """The engine's configuration. A field's name is its key in the native module."""

    # The job
    rank: int
    size: int
    hosts: list[int]
    """Host index of each rank."""
    host_names: list[str]
    job: str
    """Prefix of the engine's keys in the store."""
    secondary_failure_key: str
    """The counter in the store by which this rank reports a secondary failure; "" in a job of one process."""
    elastic: bool
    launcher: tuple[int, str] | None
    """pidfd of the launcher's process, and the message when it has ended."""
    first_handle: int
    """Handles of one process differ from engine to engine."""

    # The control plane
    links: list[Link]
    segment_fd: int
    segment_bytes: int
    bells: tuple[int, int]
    """The two eventfds of this process, -1 without links within the host."""
    bell_slot: int
    leads_host: bool
    store_fd: int
    store_key: bytes

    # Backends (BackendPlan.engine_config())
    math_backend: Library
    local_backend: Library | None
    global_backend: Library | None
    local_alone: bool
    hierarchical: list[int]
    host_routes: dict[int, Library]
    devices: list[dict[str, Any]]
    devices_note: str
    find_device: Callable[[str], tuple[dict[str, Any] | None, str]]
    last_calls: int
    """Address of the memory for the calls into backends; 0 for none."""

    # Behaviour
    settings: EngineSettings
    spin_us: float
    engine_core: int
    """The core of the engine's thread; -1 for any."""
    packages: str
    """The folder with this package: frames of its code are not a program's."""
    observe: dict[str, Any]
    """See engine_observes()."""
    doctor: tuple[str, str] | None = None
    """Name of the socket for `hvd doctor`, and the facts that it serves."""

    def as_dict(self) -> dict[str, Any]:
        """The dict for ``_core.Engine``. Optional parts that are not there are left out."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        found["settings"] = vars(self.settings)
        found["links"] = [vars(link) for link in self.links]
        if self.settings.autotune:
            found["autotune"] = _search_for_settings(self.settings)
        if self.doctor is None:
            del found["doctor"]
        return found


def _search_for_settings(settings: EngineSettings) -> dict[str, Any]:
    """What the search for better settings may change: values that the user has chosen stay."""

    def is_free(name: str) -> bool:
        return not os.environ.get(variable_of(name), "").strip()

    return {
        "threshold": is_free("fusion_threshold"),
        "delay": is_free("cycle_time_ms"),
        "warmup_samples": settings.autotune_warmup_samples,
        "steps_per_sample": settings.autotune_steps_per_sample,
        "max_samples": settings.autotune_max_samples,
        "log": settings.autotune_log,
    }


PACKAGES = str(Path(__file__).resolve().parents[2])
