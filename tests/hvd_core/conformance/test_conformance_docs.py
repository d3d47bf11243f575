"""docs/conformance.md lists what there is. This file, as a program, brings it up to date."""

import math
import re
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[3])]

from hvd_core.conformance import _numerics  # noqa: E402
from hvd_core.conformance._cases import all_cases  # noqa: E402
from mutant_table import FAST, SLOW, WHEELS, rows  # noqa: E402

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "conformance.md"


def faults_markdown():
    """Fault, and the cases that catch it."""
    caught = {}
    for fault, *_, case in rows(FAST) + rows(SLOW) + rows(WHEELS):
        caught.setdefault(fault, {})[case] = None
    in_order = sorted(caught.items(), key=lambda item: min(item[1]))
    lines = [
        f"| {fault.replace('_', ' ')} | {', '.join(f'`{c}`' for c in cases)} |" for fault, cases in in_order
    ]
    return "\n".join(["| fault | caught by |", "|---|---|", *lines]) + "\n"


def cases_markdown(cases):
    """Case, and what it shows."""
    lines = ["| case | what it shows |", "|---|---|", *(f"| `{c.name}` | {c.says} |" for c in cases)]
    return "\n".join(lines) + "\n"


def rendered(text):
    kit = [c for c in all_cases() if c.name.startswith("L")]
    for name, body in (("cases", cases_markdown(kit)), ("faults", faults_markdown())):
        begin, end = f"<!-- {name}: begin (generated) -->\n", f"<!-- {name}: end -->"
        head, rest = text.split(begin)
        text = head + begin + body + end + rest.split(end, 1)[1]
    return text


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == rendered(PAGE.read_text()), f"run python {Path(__file__).name}"


def test_cases_that_others_name_exist():
    known = {c.name for c in all_cases()}
    files = [
        *(ROOT / "docs").glob("*.md"),
        *(
            f
            for f in (ROOT / "backends").glob("*/csrc/**/*")
            if f.suffix in {".cc", ".h", ".hpp", ".inc", ".py"}
        ),
        *(ROOT / "hvd_core/_cli").glob("*.py"),
    ]
    named = {(f.name, name) for f in files for name in re.findall(r"\bL[0-5]\.[a-z_]+\b", f.read_text())}
    assert len(named) > 10
    assert {(where, name) for where, name in named if name not in known} == set()


def test_the_pages_tolerances_are_the_kits():
    text = PAGE.read_text()
    for dtype, (unit, _) in _numerics.ROUNDING.items():
        assert f"| {dtype} | 2^-{round(-math.log2(unit))} |" in text


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text()))
