"""Tables and JSON on standard output, with or without a terminal."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


# The exit codes of the command ``hvd``, for scripts.

OK = 0
"""No faults were found."""
FINDINGS = 1
"""A fault was found: a phase or a case that fails."""
REFUSED = 2
"""The command could not run: wrong arguments, an unknown backend, a file that cannot be read."""
INTERRUPTED = 130
"""Ctrl-C."""


_PIPED_WIDTH = 200  # without a terminal, lines are rarely broken


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """The option ``--json``."""
    parser.add_argument(
        "--json", action="store_true", help="one JSON document on standard output instead of tables"
    )


def console() -> Console:
    """A console that respects NO_COLOR, COLUMNS and the terminal. Without a terminal it uses no colours and wide
    lines."""
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would end the process with 1; run() handles it

    narrow = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return Quiet(width=None if narrow else _PIPED_WIDTH, highlight=False, emoji=False, markup=False)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], styles: dict[str, str] | None = None
) -> None:
    """Print a table. ``styles``: word -> the style of a row in which a cell begins with that word."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        words = [str(cell).split(" ")[0].rstrip(":") for cell in row if cell]
        style = next((styles[word] for word in words if styles and word in styles), None)
        made.add_row(*map(str, row), style=style)
    console().print(made)


def text(*lines: str) -> None:
    """Print lines of prose, wrapped at the terminal's width."""
    out = console()
    for line in lines:
        out.print(line)


def document(value: Any) -> None:
    """Print one JSON document."""
    print(json.dumps(value, indent=2, default=str))
