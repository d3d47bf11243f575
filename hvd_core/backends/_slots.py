"""The ABI's slot list as Python data, read from the X-macro that the C++ loader is built from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_ROW = re.compile(r"^HVD_SLOT\((\w+), (\w+), (\d+), (REQUIRED|OPTIONAL|GROUP\((\w+)\))\)(?: +/\* (.+) \*/)?$")


@dataclass(frozen=True)
class Slot:
    """One function slot: ``table`` is host, device, comm or backend; ``need`` is REQUIRED, OPTIONAL or GROUP; ``says``
    describes the function in a line."""

    table: str
    name: str
    since_minor: int
    need: str
    group: str | None
    says: str = ""


def slots_file() -> Path:
    """Path of backend_slots.inc as it was installed. Raises FileNotFoundError."""
    path = Path(__file__).resolve().parent.parent / "include" / "hvd" / "backend_slots.inc"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; reinstall hvd-core")
    return path


def slots(path: Path | None = None) -> list[Slot]:
    """All slots in the order of the structs. Raises ValueError for a line that is not understood."""
    result = []
    text = (path or slots_file()).read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("HVD_SLOT("):
            continue
        match = _ROW.match(line)
        if match is None:
            raise ValueError(f"backend_slots.inc:{number}: cannot read '{line}'")
        table, name, since, need, group, says = match.groups()
        result.append(Slot(table, name, int(since), "GROUP" if group else need, group, says or ""))
    return result
