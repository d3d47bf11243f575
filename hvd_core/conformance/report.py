"""Reports of a run: a table that grows while the cases run, JSON, JUnit.

The table uses rich where it is installed and the output is a terminal, and plain text otherwise.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from hvd_core.conformance.resolve import Target
from hvd_core.conformance.verdicts import EMULATED, FAIL, NATIVE, NOTE, PASS, REFUSED, SKIPPED, Result
from hvd_core.version import __version__

_STYLE = {PASS: "green", FAIL: "bold red", SKIPPED: "yellow", EMULATED: "cyan"}
_SHOWN_ROWS = 12


def print_list(cases: Sequence) -> None:
    """Prints all cases: id, ranks, one line each."""
    width = max((len(c.name) for c in cases), default=0)
    for c in cases:
        print(f"{c.name:<{width}}  {c.says}")


def cases_markdown(cases: Sequence) -> str:
    """The table of cases in docs/conformance.md."""
    lines = ["| case | what it shows |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{c.name}` | {c.says} |" for c in cases)]) + "\n"


def summary(result: Result) -> str:
    """The text beside the verdict: the reason, or a count of the rows."""
    if result.verdict == FAIL or (result.verdict == SKIPPED and result.text):
        return result.text
    count = Counter(row.verdict for row in result.rows)
    parts = [
        f"{count[v]} {word}"
        for v, word in ((NATIVE, "native"), (EMULATED, "EMULATED by hvd-core"), (REFUSED, "not served"))
        if count[v]
    ]
    notes = [f"{row.what}: {row.text}" for row in result.rows if row.verdict == NOTE]
    return "; ".join(filter(None, [result.text, ", ".join(parts), *notes]))


class Table:
    """Prints a line per case as it ends."""

    def __init__(self, target: Target, size: int, verbose: bool, quiet: bool = False) -> None:
        self.verbose, self.quiet = verbose, quiet
        self._console = _console()
        ranks = "1 rank" if size == 1 else f"{size} ranks"
        self._say(f"hvd-core {__version__} conformance: backend {target.name} ({target.origin}), {ranks}")
        self._say(f"  {target.python or target.path}")
        self._level = ""

    def add(self, result: Result, says: str) -> None:
        """A case has ended."""
        from hvd_core.conformance.cases import LEVELS

        if result.level != self._level:
            self._level = result.level
            title = LEVELS.get(self._level)
            self._say(f"{self._level} {title}" if title else self._level, "bold")
        text = summary(result) or says
        self._line(result.verdict, f"{result.case:<22}", f"{result.seconds:6.1f} s", text)
        rows = [r for r in result.rows if r.verdict == FAIL or (self.verbose and r.verdict != NOTE)]
        for row in rows if self.verbose else rows[:_SHOWN_ROWS]:
            self._say(f"      {row.verdict:<8} {row.what}" + (f": {row.text}" if row.text else ""))
        if len(rows) > _SHOWN_ROWS and not self.verbose:
            self._say(f"      and {len(rows) - _SHOWN_ROWS} more (-v shows all)")

    def end(self, results: Sequence[Result]) -> None:
        """The last line."""
        count = Counter(r.verdict for r in results)
        parts = [
            f"{count[v]} {v.lower() if v != FAIL else 'FAILED'}"
            for v in (PASS, FAIL, EMULATED, SKIPPED)
            if count[v]
        ]
        verdict = "FAIL" if count[FAIL] else "PASS"
        self._say(f"{verdict}: {', '.join(parts) or 'no cases'}", _STYLE[verdict])

    def _line(self, verdict: str, name: str, took: str, text: str) -> None:
        if self.quiet:
            return
        if self._console:
            from rich.text import Text

            line = Text("  ")
            line.append(f"{verdict:<9}", _STYLE[verdict])
            line.append(f"{name} ").append(took, "dim").append(f"  {text}")
            self._console.print(line)
        else:
            print(f"  {verdict:<9}{name} {took}  {text}", flush=True)

    def _say(self, text: str, style: str = "") -> None:
        if self.quiet:
            return
        if self._console:
            self._console.print(text, style=style or None, markup=False, highlight=False)
        else:
            print(text, flush=True)


def _console():
    if not sys.stdout.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console()


def as_json(target: Target, size: int, results: Sequence[Result]) -> dict:
    """The whole run; the format has a version."""
    return {
        "format": 1,
        "hvd_core": __version__,
        "backend": target.name,
        "origin": target.origin,
        "ranks": size,
        "summary": dict(Counter(r.verdict for r in results)),
        "cases": [r.as_dict() for r in results],
    }


def write_json(place: str, target: Target, size: int, results: Sequence[Result]) -> None:
    """To a file, or to standard output for "-"."""
    text = json.dumps(as_json(target, size, results), indent=1) + "\n"
    if place == "-":
        sys.stdout.write(text)
    else:
        Path(place).write_text(text, encoding="utf-8")


def write_junit(path: Path, target: Target, results: Sequence[Result]) -> None:
    """JUnit XML: a suite per level. A skipped case is skipped there, with its reason, and never passed."""
    root = ElementTree.Element("testsuites", name=f"conformance of {target.name}")
    for level in dict.fromkeys(r.level for r in results):
        mine = [r for r in results if r.level == level]
        suite = ElementTree.SubElement(
            root, "testsuite", name=level, tests=str(len(mine)),
            failures=str(sum(r.verdict == FAIL for r in mine)),
            skipped=str(sum(r.verdict == SKIPPED for r in mine)),
        )  # fmt: skip
        for r in mine:
            test = ElementTree.SubElement(
                suite,
                "testcase",
                classname=f"conformance.{target.name}",
                name=r.case,
                time=f"{r.seconds:.3f}",
            )
            if r.verdict == FAIL:
                ElementTree.SubElement(test, "failure", message=r.text[:500]).text = "\n".join(
                    f"{row.what}: {row.text}" for row in r.rows if row.verdict == FAIL
                )
            elif r.verdict == SKIPPED:
                ElementTree.SubElement(test, "skipped", message=r.text)
            if r.rows:
                out = "\n".join(f"{row.verdict} {row.what} {row.text}".rstrip() for row in r.rows)
                ElementTree.SubElement(test, "system-out").text = out
    ElementTree.indent(root)
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
