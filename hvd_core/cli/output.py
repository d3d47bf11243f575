"""Tables and JSON on standard output, in a terminal of any width and in none."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

_PIPED_WIDTH = 200  # where nobody looks at the width, lines are not broken for it


def console() -> Console:
    """Knows NO_COLOR, COLUMNS and the terminal; without a terminal there are no colours and hardly a line break."""
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would end the process with 1; run() knows better

    narrow = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return Quiet(width=None if narrow else _PIPED_WIDTH, highlight=False, emoji=False, markup=False)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], styles: dict[str, str] | None = None
) -> None:
    """One table. ``styles``: the style of a row whose first or last cell begins with the word."""
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
    """Lines of prose, wrapped at the terminal's width."""
    out = console()
    for line in lines:
        out.print(line)


def document(value: Any) -> None:
    """One JSON document."""
    made = json.dumps(value, indent=2, default=str) + "\n"
    if _kept is None:
        sys.stdout.write(made)
    else:
        _kept.append(made)


_kept: list[str] | None = None


@contextmanager
def documents_only() -> Iterator[None]:
    """Standard output is for documents: what plugins and vendors' libraries print meanwhile goes to standard error."""
    global _kept
    _kept, out, saved = [], sys.stdout, None
    out.flush()
    with suppress(OSError):  # there may be no standard output
        saved = os.dup(1)
        os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if saved is not None:
            os.dup2(saved, 1)
            os.close(saved)
        made, _kept = _kept, None
        out.write("".join(made))
