"""docs/environment.md has the engine's settings as in the code, and every variable that the code reads."""

import re
from pathlib import Path

from generated_tables import assert_up_to_date

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "environment.md"
# A variable in quotes. Backends' own options (HOROVOD_BACKEND_NAME_OPTION) are listed by `hvd plugin show`.
NAME = re.compile(r"""["'](HOROVOD_[A-Z0-9_]*[A-Z0-9])["'=]""")
OPTION = re.compile(r"HOROVOD_BACKEND_(?!SPEC|PATH)\w+")


def variables_of_the_code():
    found = {}
    for folder in ("hvd_core", "horovod", "backends"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".cc", ".h", ".hpp") and "build" not in path.parts:
                for name in NAME.findall(path.read_text(encoding="utf-8", errors="replace")):
                    found.setdefault(name, path.relative_to(ROOT).as_posix())
    return {name: path for name, path in found.items() if not OPTION.fullmatch(name)}


def variables_of_the_page():
    """Names in full, and those that are written as an ending (`_ALLGATHER`) of the first name of their cell."""
    names = set()
    for cell in re.findall(r"^\|([^|]*)\|", PAGE.read_text(), re.MULTILINE):
        words = re.findall(r"`([^`]+)`", cell)
        names.update(word for word in words if word.startswith("HOROVOD_"))
        for full in [word for word in words if word.startswith("HOROVOD_")]:
            names.update(full.rpartition("_")[0] + word for word in words if word.startswith("_"))
    return names


def test_the_engines_settings_are_those_of_the_code():
    assert_up_to_date("environment.md")


def test_every_variable_of_the_code_is_on_the_page():
    found, known = variables_of_the_code(), variables_of_the_page()
    assert len(found) > 50
    assert {name: path for name, path in found.items() if name not in known} == {}


def test_no_other_page_lists_the_engines_settings():
    for page in (ROOT / "docs").glob("*.md"):
        if page != PAGE:
            rows = re.findall(
                r"^\| `HOROVOD_(?:CACHE_CAPACITY|LOG_LEVEL|SPIN_US)", page.read_text(), re.MULTILINE
            )
            assert len(rows) <= 1, f"{page.name} lists variables; docs/environment.md does that"
