"""The collectives that a backend serves itself and those that the engine composes: one cell per collective and element
type.

The backend's slot ``query`` answers, with the engine's arguments and without a communicator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvd_core.types import COLLECTIVES, DTYPES, REDUCTIONS, UNSERVED

SHOWN = ("allreduce", "reduce", "reducescatter", "broadcast", "allgather", "alltoall", "barrier")
NATIVE, EMULATED, NONE = "NATIVE", "EMULATED", "-"


def served(query: Callable[[int, int, int], dict[str, Any]]) -> list[dict[str, Any]]:
    """One dict per collective, element type and reduction: ``support`` is NATIVE, EMULATED (composed by the engine) or
    "-" (not available), ``score``, ``alignment`` in bytes, ``max_count`` (0: no limit). ``query`` takes ABI numbers.
    """
    rows = []
    for name in SHOWN:
        coll = COLLECTIVES[name]
        for type_name, dtype in DTYPES.items():
            if name == "barrier" and dtype.number:
                continue
            for op, op_name in enumerate(REDUCTIONS if coll.reduces else ("",)):
                answer = query(coll.number, dtype.number, op)
                native = answer["support"] != UNSERVED
                rows.append(
                    {
                        "collective": name,
                        "dtype": "" if name == "barrier" else type_name,
                        "op": op_name,
                        "support": NATIVE if native else _composed(name, type_name, op_name),
                        "score": answer["score"],
                        "alignment": answer["alignment"],
                        "max_count": answer["max_count"],
                    }
                )
    return rows


def _composed(name: str, dtype: str, op: str) -> str:
    """Whether the engine composes an operation that the backend lacks: it does not reduce 8-bit floats, and does not
    average bools."""
    impossible = COLLECTIVES[name].reduces and op not in DTYPES[dtype].reductions
    return NONE if impossible else EMULATED


def cells(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """(columns, lines) of a table with a line per element type. A cell holds the reductions that are NATIVE ("all" if all
    are), "yes" for collectives that only move data, "composed" for EMULATED, and "-"."""
    names = [name for name in SHOWN if name != "barrier"]
    lines = []
    for dtype in DTYPES:
        line = [dtype]
        for name in names:
            here = [row for row in rows if row["collective"] == name and row["dtype"] == dtype]
            line.append(_cell([row for row in here if row["support"] != NONE]))
        lines.append(line)
    return ["type", *names], lines


def _cell(possible: list[dict[str, Any]]) -> str:
    if not possible:
        return NONE
    native = [row["op"] for row in possible if row["support"] == NATIVE]
    if not native:
        return "composed"
    if native == [""]:
        return "yes"
    return "all" if len(native) == len(possible) else ", ".join(native)
