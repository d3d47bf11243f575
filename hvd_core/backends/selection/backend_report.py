"""The backend plan as a table with one row per operation and device type, for people and for programs. Any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from hvd_core.backends.errors import BackendError
from hvd_core.backends.selection.backend_plan import BackendPlan, Cell, Usable
from hvd_core.types import COLLECTIVES, DTYPES, NATIVE, REDUCTIONS

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
    types = DTYPES if operation != "barrier" else ("float32",)
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
