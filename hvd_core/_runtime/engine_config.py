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
    from hvd_core._bootstrap import ShmLink, TcpLink, World

Library: TypeAlias = "tuple[str, str | None]"
"""Name and path of a backend's library."""


@dataclass(frozen=True)
class AutotuneConfig:
    """What the search for better settings may change: values that the user has chosen stay."""

    threshold: bool
    """Whether it may change the fusion threshold."""
    delay: bool
    """Whether it may change the coalescing delay."""
    warmup_samples: int
    steps_per_sample: int
    max_samples: int
    log: str

    @classmethod
    def of(cls, settings: EngineSettings) -> AutotuneConfig | None:
        """None if the user has not asked for a search."""
        if not settings.autotune:
            return None

        def is_free(name: str) -> bool:
            return not os.environ.get(variable_of(name), "").strip()

        return cls(
            threshold=is_free("fusion_threshold"),
            delay=is_free("cycle_time_ms"),
            warmup_samples=settings.autotune_warmup_samples,
            steps_per_sample=settings.autotune_steps_per_sample,
            max_samples=settings.autotune_max_samples,
            log=settings.autotune_log,
        )


@dataclass(frozen=True)
class LinkConfig:
    """A link of the control plane: over TCP if ``sock_fd`` >= 0, else within the host."""

    peer: int
    is_parent: bool
    subtree: list[int]
    sock_fd: int = -1
    key: bytes = b""
    encrypted: bool = False
    slot: int = 0
    peer_bells: tuple[int, ...] = ()
    guard_fd: int = -1
    peer_pid: int = 0

    @classmethod
    def of(cls, link: ShmLink | TcpLink) -> LinkConfig:
        from hvd_core._bootstrap.links import TcpLink

        if isinstance(link, TcpLink):
            return cls(
                link.peer,
                link.is_parent,
                list(link.subtree),
                sock_fd=link.sock_fd,
                key=link.key,
                encrypted=link.encrypted,
            )
        return cls(
            link.peer,
            link.is_parent,
            list(link.subtree),
            slot=link.slot,
            peer_bells=link.peer_eventfds,
            guard_fd=link.guard_fd,
            peer_pid=link.peer_pid,
        )


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
    bereaved_key: str
    """The counter in the store by which this rank reports a secondary failure; "" in a job of one process."""
    elastic: bool
    launcher: tuple[int, str] | None
    """pidfd of the launcher's process, and the message when it has ended."""
    first_handle: int
    """Handles of one process differ from engine to engine."""

    # The control plane
    links: list[LinkConfig]
    segment_fd: int
    segment_bytes: int
    bells: tuple[int, int]
    """The two eventfds of this process, -1 without links within the host."""
    bell_slot: int
    leads_host: bool
    store_fd: int
    store_key: bytes
    start_timeout_s: float

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

    # Behaviour (EngineSettings)
    emulation: bool
    overlap_levels: bool
    fusion_threshold: int
    cycle_time_ms: float
    cache_capacity: int
    stall_warn_s: float
    stall_abort_s: float
    stall_json: str
    operation_timeout_s: float
    check_consistency: bool
    spin_us: float
    engine_core: int
    """The core of the engine's thread; -1 for any."""
    log_level: int
    log_with_time: bool
    packages: str
    """The folder with this package: frames of its code are not a program's."""
    observe: dict[str, Any]
    """See engine_observes()."""
    autotune: AutotuneConfig | None = None
    doctor: tuple[str, str] | None = None
    """Name of the socket for `hvd doctor`, and the facts that it serves."""

    def as_dict(self) -> dict[str, Any]:
        """The dict for ``_core.Engine``. Optional parts that are not there are left out."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        found["links"] = [vars(link) for link in self.links]
        if self.autotune is None:
            del found["autotune"]
        else:
            found["autotune"] = vars(self.autotune)
        if self.doctor is None:
            del found["doctor"]
        return found


def bells_of(world: World) -> tuple[int, int]:
    """The two eventfds of this process, equal in all its links."""
    for link in world.links:
        own = getattr(link, "my_eventfds", None)
        if own is not None:
            first, second = own
            return first, second
    return -1, -1


PACKAGES = str(Path(__file__).resolve().parents[2])
