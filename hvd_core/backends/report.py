"""What was chosen, as a table: one row per operation and device type. For people and for programs; any thread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hvd_core.backends.plan import COLLECTIVES, Cell, Plan, Usable

_FLOAT32, _SUM, _NATIVE = 7, 0, 1  # the backend interface's numbers


@dataclass(frozen=True)
class BackendRow:
    """One operation on one device type.

    ``backend``: its name, or two joined by " x ": within hosts and between them. ``support``, for float32: NATIVE,
    EMULATED (composed from what the backend has) or STAGED (copied through host memory). ``score``: the backend's own
    estimate, higher is better. ``source``: who chose.
    """

    operation: str
    device: str
    backend: str
    version: str
    origin: str
    support: str
    score: int
    source: str


class BackendReport(tuple[BackendRow, ...]):
    """The rows; as a text, a readable table. ``note`` says why device types that are not there are not served."""

    note: str = ""

    def __str__(self) -> str:
        lines = [
            (
                row.operation,
                row.device,
                f"{row.backend} {row.version} ({row.origin})",
                row.support,
                f"score {row.score}",
                f"[{row.source}]",
            )
            for row in self
        ]
        widths = [max((len(line[i]) for line in lines), default=0) for i in range(6)]
        return "\n".join("  ".join(t.ljust(w) for t, w in zip(line, widths)).rstrip() for line in lines)


def report(plan: Plan) -> BackendReport:
    """The report of a choice; asks the backends' tables what they serve."""
    made = BackendReport(_row(cell) for cell in plan.cells())
    made.note = plan.note
    return made


def _row(cell: Cell) -> BackendRow:
    answers = [_query(backend, cell.operation) for backend in cell.backends]
    how = "NATIVE" if all(native for native, _ in answers) else "EMULATED"
    return BackendRow(
        operation=cell.operation,
        device=cell.device,
        backend=" x ".join(b.name for b in cell.backends),
        version=_joined(b.version for b in cell.backends),
        origin=_joined(b.origin for b in cell.backends),
        support="STAGED" if cell.staged else how,
        score=min(score for _, score in answers),
        source=cell.source,
    )


def _query(backend: Usable, operation: str) -> tuple[bool, int]:
    from hvd_core._core import query_backend

    answer = query_backend(backend.name, backend.path, COLLECTIVES[operation], _FLOAT32, _SUM)
    return answer["support"] == _NATIVE, int(answer["score"])


def _joined(texts: Iterable[str]) -> str:
    return " x ".join(dict.fromkeys(texts))
