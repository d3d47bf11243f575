"""The result of the selection: a backend for each operation on each device type, as data for the engine and for people.

Immutable. Equal on all ranks after the agreement (agreement.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hvd_core._config.selection_rules import HOST, OPERATIONS
from hvd_core.types import COLLECTIVES

DEVICE_OPERATIONS = tuple(o for o in OPERATIONS if o != "barrier")
"""The operations on tensors. A barrier has no tensor and is carried out over host memory."""
AUTOMATIC = "automatic"


@dataclass(frozen=True)
class Usable:
    """A backend that was found and described, whose probe succeeded, and whose library is loaded.

    ``origin`` is for people: "embedded", "hvd-backend-x 0.3.0". ``serves``: the device types whose memory its
    communicators read directly, "cpu" for host memory. ``table``: the device type of its device table. ``abi``: (major,
    minor). ``launchers``: the launchers whose jobs it belongs to (BackendDescriptor.launchers). ``options``: its
    schema, one dict per option. ``kept_within``: why it is used within hosts only, although it reaches across them.
    """

    name: str
    path: str
    origin: str = "embedded"
    version: str = ""
    vendor_lib: str = ""
    abi: tuple[int, int] = (1, 0)
    serves: frozenset[str] = frozenset({HOST})
    table: str | None = None
    spans_hosts: bool = True
    automatic: bool = False
    priority: int = 50
    launchers: tuple[str, ...] = ()
    options: tuple[dict[str, Any], ...] = ()
    kept_within: str = ""

    @property
    def library(self) -> tuple[str, str]:
        """(name, path), the arguments of the engine's loader."""
        return self.name, self.path

    def describe(self) -> str:
        """``x 0.3.1 (libx 3.1.0)``."""
        text = f"{self.name} {self.version}" if self.version else self.name
        return f"{text} ({self.vendor_lib})" if self.vendor_lib else text


@dataclass(frozen=True)
class Selection:
    """A backend, and the source of its choice: HOROVOD_BACKEND, init(backend=...), a file and line, or automatic."""

    backend: Usable
    source: str

    @property
    def name(self) -> str:
        """The backend's name."""
        return self.backend.name

    @property
    def path(self) -> str:
        """Its shared object."""
        return self.backend.path


@dataclass(frozen=True)
class HostRoute:
    """The backends that serve host memory.

    ``within``: the backend within hosts, None if ``between`` serves everything. ``between``: the backend for any ranks,
    None in a job on one host. ``hierarchical``: the collectives that use both on several hosts. ``within_alone``: whether
    a process set on one host uses ``within``.
    """

    within: Selection | None
    between: Selection | None
    hierarchical: tuple[str, ...] = ()
    within_alone: bool = True

    @property
    def source(self) -> str:
        """The source of the choice (Selection.source)."""
        return self._main.source

    @property
    def _main(self) -> Selection:
        main = self.between or self.within
        assert main is not None
        return main

    def backends(self, operation: str) -> tuple[Usable, ...]:
        """The backends that serve an operation: one, or the one within hosts and the one between them."""
        if self.within and self.between and operation in self.hierarchical:
            return self.within.backend, self.between.backend
        return (self._main.backend,)

    def describe(self) -> str:
        """``shm``, ``tcp``, or ``shm within hosts, tcp between them (flat: allgather)``."""
        if self.between is None or self.within is None:
            return self._main.name
        flat = [c for c in ("allreduce", "allgather", "broadcast", "alltoall") if c not in self.hierarchical]
        text = f"{self.within.name} within hosts, {self.between.name} between them"
        return text + (f" (flat: {', '.join(flat)})" if flat else "")


@dataclass(frozen=True)
class DeviceRoutes:
    """The backends that serve one device type.

    ``table``: the backend that opens the devices. ``routes``: operation -> the backend that moves the data; the data are
    copied through host memory if that backend does not read the device's memory. An operation without a route is staged
    over the backends of host memory. ``sources``: operation -> the source of its choice. ``within``: the backend that
    reduces on the device within hosts, where a large allreduce goes over two levels; the backend of host memory between
    hosts is the other one.
    """

    type: str
    table: Usable
    routes: dict[str, Usable]
    sources: dict[str, str]
    within: Usable | None = None

    def engine_config(self, local_rank: int) -> dict[str, Any]:
        """The engine's configuration of this device type."""
        return {
            "type": self.type,
            "table": self.table.library,
            "within": self.within and self.within.library,
            "ordinal": local_rank,
            "routes": _numbered(
                {o: self.routes[o].library if o in self.routes else None for o in DEVICE_OPERATIONS}
            ),
        }

    def backends(self) -> tuple[Usable, ...]:
        """All backends of this device type."""
        return (self.table, *self.routes.values(), *([self.within] if self.within else []))


@dataclass(frozen=True)
class Cell:
    """One operation on one device type: the backends that serve it, whether the data are staged (copied through host
    memory), and the source of the choice."""

    operation: str
    device: str
    backends: tuple[Usable, ...]
    staged: bool
    source: str


@dataclass(frozen=True)
class BackendPlan:
    """The whole result of the selection.

    ``host_overrides``: operation -> the backend on host memory, if it differs from ``host_route``. ``devices``: the types
    that rules name; at_init.JobBackends adds others when their first tensor comes. ``note``: why device types that are
    not in ``devices`` are not served, and what to set; "" if a backend is looked for at their first tensor.
    ``unused_between``: why a backend that belongs to
    the jobs of this job's launcher is not used between hosts; "" if it is used or not installed. ``named_for_devices``:
    an older variable that names a backend for all accelerators, as a clause for messages; "" without one. The tensors of
    a device type that is not in ``devices`` must not be copied through host memory then.
    """

    host_route: HostRoute
    host_overrides: dict[str, Selection]
    devices: tuple[DeviceRoutes, ...] = ()
    note: str = ""
    unused_between: str = ""
    named_for_devices: str = ""

    def cells(self) -> tuple[Cell, ...]:
        """The rows of the report, host memory first."""
        cells = [self.host_cell(operation) for operation in OPERATIONS]
        for device in self.devices:
            for operation in DEVICE_OPERATIONS:
                route = device.routes.get(operation)
                over = (route,) if route else self.host_cell(operation).backends
                between = self.host_route.between
                if operation == "allreduce" and device.within and between:
                    route, over = between.backend, (device.within, between.backend)
                source = device.sources[operation]
                staged = route is None or device.type not in route.serves
                cells.append(Cell(operation, device.type, over, staged, source))
        return tuple(cells)

    def staged_cells(self, device_type: str) -> tuple[Cell, ...]:
        """The rows of a device type without a backend, whose tensors a front end copies through host memory."""
        return tuple(
            Cell(o, device_type, self.host_cell(o).backends, True, AUTOMATIC) for o in DEVICE_OPERATIONS
        )

    def host_cell(self, operation: str) -> Cell:
        """The row of an operation on host memory."""
        override = self.host_overrides.get(operation)
        if override is not None:
            return Cell(operation, HOST, (override.backend,), False, override.source)
        return Cell(operation, HOST, self.host_route.backends(operation), False, self.host_route.source)

    def backends(self) -> tuple[Usable, ...]:
        """All backends of the plan, each once."""
        found = [level.backend for level in (self.host_route.within, self.host_route.between) if level]
        found += [s.backend for s in self.host_overrides.values()]
        for device in self.devices:
            found += device.backends()
        return tuple({b.name: b for b in found}.values())

    def engine_config(self, local_rank: int) -> dict[str, Any]:
        """The keys of the engine's configuration that name the backends."""
        within, between = self.host_route.within, self.host_route.between
        return {
            "local_backend": within and within.backend.library,
            "global_backend": between and between.backend.library,
            "local_alone": self.host_route.within_alone,
            "hierarchical": [COLLECTIVES[name].number for name in self.host_route.hierarchical],
            "host_routes": _numbered({o: s.backend.library for o, s in self.host_overrides.items()}),
            "devices": [d.engine_config(local_rank) for d in self.devices],
            "devices_note": self.note,
        }


Plan = BackendPlan
"""The earlier name of BackendPlan."""


def _numbered(routes: dict[str, Any]) -> dict[int, Any]:
    numbered = {COLLECTIVES[operation].number: route for operation, route in routes.items()}
    if "allreduce" in routes:
        numbered[COLLECTIVES["reduce"].number] = routes["allreduce"]
    if "broadcast" in routes:  # a message is a broadcast where the backend has no send and receive
        for half in ("send", "recv"):
            numbered[COLLECTIVES[half].number] = routes["broadcast"]
    return numbered
