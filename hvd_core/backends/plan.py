"""What a job has decided: a backend for each operation on each device type, as data for the engine and for people.

Immutable. Equal on all ranks once they have agreed (agreement.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hvd_core.backends.rules import HOST, OPERATIONS
from hvd_core.types import COLLECTIVES

DEVICE_OPERATIONS = tuple(o for o in OPERATIONS if o != "barrier")
"""What is done with tensors; a barrier goes over host memory."""
AUTOMATIC = "automatic"


@dataclass(frozen=True)
class Usable:
    """A backend that was found and described, that answers its probe, and whose library is loaded.

    ``origin`` is for people: "embedded", "hvd-backend-x 0.3.0". ``serves``: device types whose memory its communicators
    read themselves, "cpu" among them. ``table``: the device type of its device table. ``abi``: (major, minor).
    ``launchers``: those whose jobs it belongs to (BackendDescriptor.launchers).
    ``options``: its schema, one dict per option.
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

    @property
    def library(self) -> tuple[str, str]:
        """What the engine's loader takes."""
        return self.name, self.path

    def describe(self) -> str:
        """``x 0.3.1 (libx 3.1.0)``."""
        text = f"{self.name} {self.version}" if self.version else self.name
        return f"{text} ({self.vendor_lib})" if self.vendor_lib else text


@dataclass(frozen=True)
class Selection:
    """A backend and who chose it: HOROVOD_BACKEND, init(backend=...), a file and line, or automatic."""

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
class Ways:
    """How host memory goes.

    ``within``: the backend within hosts, None where ``between`` does everything. ``between``: the backend for any ranks,
    None in a job on one host. ``hierarchical``: the collectives that use both on several hosts. ``within_alone``: whether
    a process set on one host uses ``within``.
    """

    within: Selection | None
    between: Selection | None
    hierarchical: tuple[str, ...] = ()
    within_alone: bool = True

    @property
    def source(self) -> str:
        """Who chose."""
        return self._main.source

    @property
    def _main(self) -> Selection:
        main = self.between or self.within
        assert main is not None
        return main

    def backends(self, operation: str) -> tuple[Usable, ...]:
        """The backends that an operation goes over: one, or that within hosts and that between them."""
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
class DevicePlan:
    """One device type. ``table`` opens its devices; ``routes``: the backend that moves its data, by operation, by a copy
    in host memory where it does not read the device's; an operation without a route is staged over what host memory
    goes over. ``sources``: who chose, by operation."""

    type: str
    table: Usable
    routes: dict[str, Usable]
    sources: dict[str, str]


@dataclass(frozen=True)
class Cell:
    """One operation on one device type: the backends it goes over, whether by a copy in host memory, and who chose."""

    operation: str
    device: str
    backends: tuple[Usable, ...]
    staged: bool
    source: str


@dataclass(frozen=True)
class Plan:
    """Everything. ``host_routes``: operations on host memory that go over another backend than ``ways``. ``note``: why
    other device types than those of ``devices`` are not served, and what to set. ``unused_between``: why a backend that
    belongs to the jobs of this one's launcher does not go between its hosts; "" where it does, or there is none."""

    ways: Ways
    host_routes: dict[str, Selection]
    devices: tuple[DevicePlan, ...] = ()
    note: str = ""
    unused_between: str = ""

    def cells(self) -> tuple[Cell, ...]:
        """The table, host memory first."""
        cells = [self.host_cell(operation) for operation in OPERATIONS]
        for device in self.devices:
            for operation in DEVICE_OPERATIONS:
                route = device.routes.get(operation)
                over = (route,) if route else self.host_cell(operation).backends
                source = device.sources[operation]
                staged = route is None or device.type not in route.serves
                cells.append(Cell(operation, device.type, over, staged, source))
        return tuple(cells)

    def host_cell(self, operation: str) -> Cell:
        """How an operation on host memory goes."""
        special = self.host_routes.get(operation)
        if special is not None:
            return Cell(operation, HOST, (special.backend,), False, special.source)
        return Cell(operation, HOST, self.ways.backends(operation), False, self.ways.source)

    def backends(self) -> tuple[Usable, ...]:
        """All backends that take part, each once."""
        found = [b for w in (self.ways.within, self.ways.between) if w for b in (w.backend,)]
        found += [s.backend for s in self.host_routes.values()]
        for device in self.devices:
            found += [device.table, *device.routes.values()]
        return tuple({b.name: b for b in found}.values())

    def engine_config(self, local_rank: int) -> dict[str, Any]:
        """The keys of the engine's configuration that say which backends there are."""
        within, between = self.ways.within, self.ways.between
        return {
            "local_backend": within and within.backend.library,
            "global_backend": between and between.backend.library,
            "local_alone": self.ways.within_alone,
            "hierarchical": [COLLECTIVES[name].number for name in self.ways.hierarchical],
            "host_routes": _numbered({o: s.backend.library for o, s in self.host_routes.items()}),
            "devices": [
                {
                    "type": d.type,
                    "table": d.table.library,
                    "ordinal": local_rank,
                    "routes": _numbered(
                        {o: d.routes[o].library if o in d.routes else None for o in DEVICE_OPERATIONS}
                    ),
                }
                for d in self.devices
            ],
            "devices_note": self.note,
        }


def _numbered(routes: dict[str, Any]) -> dict[int, Any]:
    numbered = {COLLECTIVES[operation].number: route for operation, route in routes.items()}
    if "allreduce" in routes:
        numbered[COLLECTIVES["reduce"].number] = routes["allreduce"]
    return numbered
