"""Puts code from the sources into the pages of this folder and the README: they show code that is built and tested.

    python docs/include.py          bring all pages up to date
    python docs/include.py --check  fail if one is not

A page says what it wants between two comments, and everything between them is made here:

    <!-- include: FILE from "START" to "END" -->
    <!-- include: end -->

FILE is relative to the repository. The piece begins with the one line that starts with START (after its indentation) and
ends with the first line from there on that is not indented more and starts with END; "..." for END: before the
first line that is not indented more, as blocks of Python end. Comment lines directly above START belong to it.
Without from and to, the whole file is shown.

    <!-- diff: OLD NEW -->
    <!-- diff: end -->

The steps from one file to another are shown likewise, in the form that `patch` takes. A table of files with their lengths
is made from

    <!-- lines: FOLDER
    FILE FILE ...: what they are
    -->
    <!-- lines: end -->
"""

from __future__ import annotations

import difflib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(
    r'(<!-- include: (\S+)(?: from "(.+?)" to "(.+?)")? -->\n).*?(<!-- include: end -->)', re.DOTALL
)
_LINES = re.compile(r"(<!-- lines: (\S+)\n(.*?)-->\n).*?(<!-- lines: end -->)", re.DOTALL)
_DIFF = re.compile(r"(<!-- diff: (\S+) (\S+) -->\n).*?(<!-- diff: end -->)", re.DOTALL)
_LANGUAGES = {".cc": "cpp", ".h": "cpp", ".hpp": "cpp", ".inc": "cpp", ".py": "python", ".toml": "toml"}
_COMMENTS = ("//", "#", "/*", " *")


def piece(text: str, start: str, end: str, where: str = "") -> str:
    """The lines between two that are given by how they start. ValueError when there is not exactly one beginning."""
    lines = text.splitlines()
    begins = [i for i, line in enumerate(lines) if line.lstrip().startswith(start)]
    if len(begins) != 1:
        raise ValueError(f'{where}: {len(begins)} lines start with "{start}"; one was expected')
    first = last = begins[0]
    depth = _depth(lines[first])
    if end == "...":
        body = lines[first + 1 :]
        inside = [i for i, line in enumerate(body) if line.strip() and _depth(line) <= depth]
        rest = "\n".join(body[: inside[0] if inside else None]).rstrip().split("\n")
        return "\n".join(line[depth:] for line in [lines[first], *rest])
    while not (lines[last].strip() and _depth(lines[last]) <= depth and lines[last].lstrip().startswith(end)):
        last += 1
        if last == len(lines):
            raise ValueError(f'{where}: after "{start}" no line starts with "{end}"')
    while (
        first > 0
        and lines[first - 1].lstrip().startswith(_COMMENTS[:2])
        and _depth(lines[first - 1]) == depth
    ):
        first -= 1
    return "\n".join(line[depth:] for line in lines[first : last + 1])


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def updated(page: str, root: Path = ROOT) -> str:
    """The page with every piece as the sources have it now. Raises ValueError, FileNotFoundError."""

    def fill(match: re.Match[str]) -> str:
        head, name, start, end, tail = match.groups()
        text = (root / name).read_text(encoding="utf-8").rstrip()
        shown = text if start is None else piece(text, start, end, name)
        # A file's name goes first in the block: the reader should not have to look for it.
        return f"{head}`{name}`\n\n```{_LANGUAGES.get(Path(name).suffix, '')}\n{shown}\n```\n{tail}"

    page = _DIFF.sub(lambda match: _steps(match, root), _BLOCK.sub(fill, page))
    return _LINES.sub(lambda match: _table(match, root), page)


def _steps(match: re.Match[str], root: Path) -> str:
    head, old, new, tail = match.groups()
    before, after = ((root / name).read_text(encoding="utf-8").splitlines() for name in (old, new))
    steps = "\n".join(difflib.unified_diff(before, after, old, new, lineterm="", n=2))
    return f"{head}```diff\n{steps}\n```\n{tail}"


def _table(match: re.Match[str], root: Path) -> str:
    head, folder, rows, tail = match.groups()
    table, total = ["| files | what they are | lines of code |", "|---|---|---|"], 0
    for row in rows.splitlines():
        names, _, what = row.partition(": ")
        count = sum(code_lines((root / folder / name).read_text(encoding="utf-8")) for name in names.split())
        total += count
        table.append(f"| {', '.join(f'`{name}`' for name in names.split())} | {what} | {count} |")
    return head + "\n".join([*table, f"| | together | {total} |"]) + f"\n{tail}"


def code_lines(text: str) -> int:
    """How many lines are neither empty nor comments."""
    lines = (line.strip() for line in text.splitlines())
    return sum(
        1 for line in lines if line.startswith("#include") or (line and not line.startswith(_COMMENTS[:2]))
    )


def main(arguments: list[str]) -> int:
    """Entry of the script; the exit status."""
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    stale = 0
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        old = path.read_text(encoding="utf-8")
        new = updated(old)
        if new != old:
            stale += 1
            print(f"{path.relative_to(ROOT)}: {'stale' if arguments else 'brought up to date'}")
            if not arguments:
                path.write_text(new, encoding="utf-8")
    return 1 if stale and arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
