"""The result of the selection: a backend for each operation on each device type, as data for the engine and for people.

Immutable. Equal on all ranks after the agreement (agreement.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from hvd_core._config.selection_rules import HOST, OPERATIONS
from hvd_core.backends.errors import BackendError, BackendUnavailable
from hvd_core.types import COLLECTIVES, DTYPES, NATIVE, REDUCTIONS

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
        """``x 0.3.1 (libx 3.1.0, ABI 1.0)``."""
        abi = f"ABI {self.abi[0]}.{self.abi[1]}"
        return f"{self.name} {self.version} ({f'{self.vendor_lib}, {abi}' if self.vendor_lib else abi})"


@dataclass(frozen=True)
class Selection:
    """A backend, and the source of its choice: HOROVOD_BACKEND, init(backend=...), a file and line, or automatic."""

    backend: Usable
    source: str


@dataclass(frozen=True)
class HostRoute:
    """The backends that serve host memory.

    ``within``: the backend within hosts, None if ``between`` serves everything. ``between``: the backend for any ranks,
    None in a job on one host. ``source``: as Selection.source. ``hierarchical``: the collectives that use both on several
    hosts. ``within_alone``: whether a process set on one host uses ``within``.
    """

    within: Usable | None
    between: Usable | None
    source: str
    hierarchical: tuple[str, ...] = ()
    within_alone: bool = True

    def backends(self, operation: str) -> tuple[Usable, ...]:
        """The backends that serve an operation: one, or the one within hosts and the one between them."""
        both = tuple(backend for backend in (self.within, self.between) if backend is not None)
        return both if operation in self.hierarchical else both[-1:]


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
                    route, over = between, (device.within, between)
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
        found = [b for b in (self.host_route.within, self.host_route.between) if b]
        found += [s.backend for s in self.host_overrides.values()]
        for device in self.devices:
            found += device.backends()
        return tuple({b.name: b for b in found}.values())

    def engine_config(self, local_rank: int) -> dict[str, Any]:
        """The keys of the engine's configuration that name the backends."""
        within, between = self.host_route.within, self.host_route.between
        return {
            "local_backend": within and within.library,
            "global_backend": between and between.library,
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


# A process set with backends of its own.


def with_own(job: BackendPlan, own: BackendPlan, source: str) -> BackendPlan:
    """``job`` with the parts of ``own`` that come from ``source``.

    Raises BackendUnavailable for a device type that is named there, and whose devices the job does not open.
    """
    on_host = {o: s for o, s in own.host_overrides.items() if s.source == source}
    if own.host_route.source == source:
        host_route = own.host_route
    else:
        host_route, on_host = job.host_route, {**job.host_overrides, **on_host}
    named = {d.type: d for d in own.devices if source in d.sources.values()}
    for missing in named.keys() - {d.type for d in job.devices}:
        raise BackendUnavailable(
            f"horovod: {source} names a backend for device type '{missing}', and this job opens no devices of that "
            "type.\n  fix: name the backend for the whole job as well, with init(backend=...) or HOROVOD_BACKEND"
        )
    devices = tuple(_routes(d, named[d.type], source) if d.type in named else d for d in job.devices)
    return replace(job, host_route=host_route, host_overrides=on_host, devices=devices)


def _routes(job: DeviceRoutes, own: DeviceRoutes, source: str) -> DeviceRoutes:
    mine = [operation for operation, by in own.sources.items() if by == source]
    routes = {o: r for o, r in job.routes.items() if o not in mine}
    routes |= {o: own.routes[o] for o in mine if o in own.routes}
    within = own.within if "allreduce" in mine else job.within
    return replace(job, routes=routes, sources={**job.sources, **dict.fromkeys(mine, source)}, within=within)


# The report: a table with one row per operation and device type, for people and for programs.

Query = Callable[[Usable, str, str], "dict[str, int]"]
Fact = Callable[[str, str], "str | None"]

COPIED = "copied by the front end"
"""The role, in the engine's backend_info(), of device types whose tensors a front end copies through host memory."""

FACTS = ("threads", "device_memory")
"""The facts that backends may report about their library in this job (docs/backend-abi.md)."""


@dataclass(frozen=True)
class BackendRow:
    """One operation on one device type.

    ``backend``: its name, or two joined by " x ": the one within hosts and the one between them. ``vendor_lib``: the
    vendor's library that it uses, if any. ``support``, for float32: NATIVE, EMULATED (composed from collectives that the
    backend has) or STAGED (copied through host memory). ``score``: the backend's own estimate, higher is better.
    ``source``: the setting that chose it. ``emulated``: the element types that are EMULATED although float32 is not.
    """

    operation: str
    device: str
    backend: str
    version: str
    origin: str
    vendor_lib: str
    support: str
    score: int
    source: str
    emulated: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServedRow:
    """An operation that the engine has carried out on a device, for one element type.

    ``backend``: the backend that moved the data (that of host memory for STAGED), or those of a hierarchy: ``shm x tcp``.
    ``support``: NATIVE, EMULATED or STAGED. ``how``: the collectives it was composed from. ``reduction``: "" for
    operations that only move data.
    """

    operation: str
    device: str
    dtype: str
    reduction: str
    backend: str
    support: str
    how: str


class BackendReport(tuple[BackendRow, ...]):
    """The rows of the table; ``str()`` gives readable text.

    ``note``: why device types that are not in the table are not served. ``unserved``: the treatment of tensors of those
    types. ``unused_between``: why a backend that belongs to
    this job's launcher is not used between hosts. ``served``: the operations that the engine has carried out on devices
    so far. ``facts``: backend -> the facts that it reports about its library in this job.
    """

    note: str = ""
    unserved: str = ""
    unused_between: str = ""
    served: tuple[ServedRow, ...] = ()
    facts: Mapping[str, Mapping[str, str]] = MappingProxyType({})

    def __str__(self) -> str:
        lines = [
            (
                row.operation,
                row.device,
                f"{row.backend} {row.version} ({', '.join(filter(None, (row.origin, row.vendor_lib)))})",
                row.support,
                f"score {row.score}",
                f"[{row.source}]",
                f"EMULATED: {', '.join(row.emulated)}" if row.emulated else "",
            )
            for row in self
        ]
        widths = [max((len(line[i]) for line in lines), default=0) for i in range(7)]
        texts = ["  ".join(t.ljust(w) for t, w in zip(line, widths)).rstrip() for line in lines]
        for name, known in self.facts.items():
            told = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in known.items())
            texts.append(f"{name}: {told}")
        if self.unused_between:
            texts.append(f"between hosts: {self.unused_between}")
        if self.served:
            texts.append("so far:")
        for row in self.served:
            what = f"{row.operation} of {row.dtype}" + (f" ({row.reduction})" if row.reduction else "")
            how = f" {row.how}" if row.how.startswith("through ") else f" by {row.how}" if row.how else ""
            texts.append(f"  {what} on {row.device}: {row.support}{how}, over {row.backend}")
        return "\n".join(texts)


def report(
    plan: BackendPlan,
    query: Query | None = None,
    info: Iterable[dict[str, Any]] = (),
    fact: Fact | None = None,
) -> BackendReport:
    """The report of a plan.

    ``query(backend, operation, element type)``: returns {"support", "score"}; by default the backends' tables answer.
    ``info`` and ``fact``: the engine's backend_info() and backend_fact().
    """
    info = tuple(info)
    copied = [entry["device_type"] for entry in info if entry["role"] == COPIED]
    cells = [cell for device in copied for cell in plan.staged_cells(device)]
    result = BackendReport(_row(cell, query or _ask) for cell in (*plan.cells(), *cells))
    result.note, result.unused_between = plan.note, plan.unused_between
    result.unserved = "their tensors are copied through host memory (STAGED)"
    if plan.named_for_devices:
        result.unserved = f"{plan.named_for_devices}, so their tensors are refused"
    told = {b.name: _facts(b.name, fact) for b in plan.backends()} if fact else {}
    result.facts = {name: known for name, known in told.items() if known}
    result.served = tuple(
        ServedRow(
            operation=done["collective"],
            device=backend["device_type"],
            dtype=done["dtype"],
            reduction=done["op"].lower() if COLLECTIVES[done["collective"]].reduces else "",
            backend=done["backend"]
            or " x ".join(b.name for b in plan.host_cell(done["collective"]).backends),
            support=done["served"],
            how=done["how"],
        )
        for backend in info
        for done in backend.get("served", ())
    )
    return result


def _facts(name: str, fact: Fact) -> dict[str, str]:
    known = {}
    for key in FACTS:
        with suppress(BackendError):  # a failing backend must not prevent the report
            known[key] = fact(name, key) or ""
    return {key: value for key, value in known.items() if value}


def _row(cell: Cell, query: Query) -> BackendRow:
    lacking = {dtype for backend in cell.backends for dtype in _lacking(backend, cell.operation, query)}
    how = "EMULATED" if "float32" in lacking else "NATIVE"
    return BackendRow(
        operation=cell.operation,
        device=cell.device,
        backend=" x ".join(b.name for b in cell.backends),
        version=_joined(b.version for b in cell.backends),
        origin=_joined(b.origin for b in cell.backends),
        vendor_lib=_joined(b.vendor_lib for b in cell.backends if b.vendor_lib),
        support="STAGED" if cell.staged else how,
        score=min(query(b, cell.operation, "float32")["score"] for b in cell.backends),
        source=cell.source,
        emulated=() if how == "EMULATED" else tuple(d for d in DTYPES if d in lacking),
    )


def _lacking(backend: Usable, operation: str, query: Query) -> list[str]:
    # A barrier has no element type. 8-bit floats are moved but never reduced.
    types = tuple(DTYPES) if operation != "barrier" else ("float32",)
    if COLLECTIVES[operation].reduces:
        types = tuple(t for t in types if DTYPES[t].reductions)
    return [t for t in types if query(backend, operation, t)["support"] != NATIVE]


def _ask(backend: Usable, operation: str, dtype: str) -> dict[str, int]:
    from hvd_core._core import query_backend

    return query_backend(
        backend.name,
        backend.path,
        COLLECTIVES[operation].number,
        DTYPES[dtype].number,
        REDUCTIONS["sum"].number,
    )


def _joined(texts: Iterable[str]) -> str:
    return " x ".join(dict.fromkeys(texts))
