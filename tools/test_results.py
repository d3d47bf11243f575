"""Writes docs/test-results.md from the report of a run of the tests.

    pytest --junitxml=build/test-results.xml
    python tools/test_results.py build/test-results.xml

`make test-all` does both.
"""

from __future__ import annotations

import argparse
import collections
import importlib.metadata
import platform
import re
import xml.etree.ElementTree as xml
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "test-results.md"
VERSIONS = ("hvd-core", "numpy", "torch", "tensorflow-cpu", "keras", "jax", "pyspark", "mpi4py", "pytest")
HEAD = """# Test results

The last run of `make test-all`, which writes this page.
"""


@dataclass
class Folder:
    """What became of the tests of a folder."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    reasons: collections.Counter[str] = field(default_factory=collections.Counter)


def read(report: Path) -> dict[str, Folder]:
    """The folders of a JUnit report, by path."""
    folders: dict[str, Folder] = collections.defaultdict(Folder)
    for case in xml.parse(report).iter("testcase"):
        path = case.get("classname", "").split(".")
        modules = [i for i, part in enumerate(path) if part.startswith("test_")]
        found = folders["/".join(path[: modules[0]] if modules else path)]
        found.seconds += float(case.get("time", "0"))
        skipped = case.find("skipped")
        if skipped is not None:
            found.skipped += 1
            found.reasons[re.sub(r"\s+", " ", skipped.get("message", ""))] += 1
        elif case.find("failure") is not None or case.find("error") is not None:
            found.failed += 1
        else:
            found.passed += 1
    return dict(sorted(folders.items()))


def page(folders: dict[str, Folder]) -> str:
    """The text of docs/test-results.md."""
    lines = [HEAD, ", ".join(["Python " + platform.python_version(), *_versions()]) + ".", ""]
    lines += ["| folder | passed | failed | skipped | seconds |", "|---|---|---|---|---|"]
    total = Folder()
    for name, folder in folders.items():
        lines.append(_row(f"`{name}`", folder))
        for attribute in ("passed", "failed", "skipped", "seconds"):
            setattr(total, attribute, getattr(total, attribute) + getattr(folder, attribute))
        total.reasons.update(folder.reasons)
    lines.append(_row("all", total))
    lines += ["", "## Skipped", "", "| tests | reason |", "|---|---|"]
    lines += [f"| {count} | {reason.replace('|', '/')} |" for reason, count in total.reasons.most_common()]
    return "\n".join(lines) + "\n"


def _row(name: str, folder: Folder) -> str:
    return f"| {name} | {folder.passed} | {folder.failed} | {folder.skipped} | {folder.seconds:.0f} |"


def _versions() -> list[str]:
    found = []
    for name in VERSIONS:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"no {name}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", type=Path, help="the file that pytest --junitxml has written")
    PAGE.write_text(page(read(parser.parse_args().report)))


if __name__ == "__main__":
    main()
