"""Writes the tables that are made from the code: the slots of backend-abi.md and the settings of environment.md.

python docs/tables.py
"""

from __future__ import annotations

from pathlib import Path

from hvd_core._config.settings import engine_settings
from hvd_core.backends._slots import slots

FOLDER = Path(__file__).resolve().parent


def slot_table() -> list[str]:
    """The slots of the backend ABI."""
    lines = ["| table | slot | since | needed | what it does |", "|---|---|---|---|---|"]
    for row in slots():
        need = f"group `{row.group}`" if row.group else row.need.lower()
        lines.append(f"| {row.table} | `{row.name}` | 1.{row.since_minor} | {need} | {row.says} |")
    return lines


def settings_table() -> list[str]:
    """The settings of the engine."""
    rows = [f"| `{s.variable}` | {s.shown} | {s.doc} |" for s in engine_settings()]
    return ["| variable | default | meaning |", "|---|---|---|", *rows]


TABLES = {
    "backend-abi.md": ("<!-- slots: begin (generated) -->", "<!-- slots: end -->", slot_table),
    "environment.md": (
        "<!-- engine settings: begin (generated) -->",
        "<!-- engine settings: end -->",
        settings_table,
    ),
}


def updated(page: str, text: str) -> str:
    """``text`` with the table between its two marks written anew."""
    begin, end, table = TABLES[page]
    head, rest = text.split(begin, 1)
    return "\n".join([head + begin, *table(), end + rest.split(end, 1)[1]])


if __name__ == "__main__":
    for name in TABLES:
        path = FOLDER / name
        path.write_text(updated(name, path.read_text(encoding="utf-8")), encoding="utf-8")
