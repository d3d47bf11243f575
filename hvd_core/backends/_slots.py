"""The ABI's slot list as Python data, read from the X-macro that the C++ loader is built from.

``python -m hvd_core.backends._slots`` prints the slot table in Markdown; with ``--update FILE`` it replaces
the part of FILE between the markers. Pure standard library.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

BEGIN, END = "<!-- slots: begin (generated) -->", "<!-- slots: end -->"

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


def markdown(rows: list[Slot]) -> str:
    """The slot table of docs/backend-abi.md."""
    lines = ["| table | slot | since | needed | what it does |", "|---|---|---|---|---|"]
    for row in rows:
        need = f"group `{row.group}`" if row.group else row.need.lower()
        lines.append(f"| {row.table} | `{row.name}` | 1.{row.since_minor} | {need} | {row.says} |")
    return "\n".join(lines) + "\n"


def update(path: Path) -> bool:
    """Rewrite the generated part of a document; return whether it changed. ValueError without markers."""
    old = path.read_text(encoding="utf-8")
    if BEGIN not in old or END not in old:
        raise ValueError(f"{path} lacks the lines '{BEGIN}' and '{END}'")
    head, rest = old.split(BEGIN, 1)
    tail = rest.split(END, 1)[1]
    new = f"{head}{BEGIN}\n{markdown(slots())}{END}{tail}"
    path.write_text(new, encoding="utf-8")
    return new != old


def main(arguments: list[str]) -> int:
    """Entry of ``python -m``; the exit status."""
    if not arguments:
        print(markdown(slots()), end="")
        return 0
    if len(arguments) == 2 and arguments[0] == "--update":
        update(Path(arguments[1]))
        return 0
    print("usage: python -m hvd_core.backends._slots [--update FILE]", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
