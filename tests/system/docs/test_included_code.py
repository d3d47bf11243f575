"""Pages that show code show the code that there is."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_spec = importlib.util.spec_from_file_location("docs_include", ROOT / "docs" / "include.py")
include = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(include)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_page_is_up_to_date(page):
    text = page.read_text(encoding="utf-8")
    assert include.updated(text) == text, "run: python docs/include.py"


def test_the_walk_shows_every_file_of_the_template():
    walk = (ROOT / "docs" / "write-a-backend.md").read_text(encoding="utf-8")
    template = ROOT / "backends" / "eccl_stub"
    for path in [*template.glob("csrc/*"), *template.glob("src/*/*.py")]:
        assert path.relative_to(template).as_posix() in walk, path


def test_links_between_pages_lead_somewhere():
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


SOURCE = """\
// About f,
// in two lines.
void f() {
  if (x) {
  }
}

void f_too();
"""


def test_piece_has_its_comment_and_ends_where_it_should():
    assert include.piece(SOURCE, "void f() {", "}") == SOURCE.partition("\n\n")[0]
    assert include.piece(SOURCE, "if (x)", "}") == "if (x) {\n}"
    assert include.piece("def f():\n    a\n\n    b\n\n\nc\n", "def f", "...") == "def f():\n    a\n\n    b"


@pytest.mark.parametrize(("start", "end", "said"), [("void f", "}", "2 lines"), ("void g", "}", "0 lines"),
                                                    ("void f_too", "}", "no line")])  # fmt: skip
def test_piece_that_is_not_there_is_an_error(start, end, said):
    with pytest.raises(ValueError, match=said):
        include.piece(SOURCE, start, end, "file.cc")


def test_lines_of_code_are_counted_without_comments_and_space():
    assert include.code_lines(SOURCE + "#include <x>\n# remark\n") == 6


def test_script_says_which_page_is_stale_and_brings_it_up_to_date(tmp_path):
    script = tmp_path / "docs" / "include.py"
    script.parent.mkdir()
    shutil.copy(ROOT / "docs" / "include.py", script)
    (tmp_path / "a.py").write_text("print(1)\n")
    page = script.with_name("page.md")
    stale = "Before.\n<!-- include: a.py -->\n<!-- include: end -->\n"
    page.write_text(stale)
    for other in (script.with_name("other.md"), tmp_path / "README.md"):
        other.write_text("Nothing is included.\n")

    def run(*options):
        ended = subprocess.run(
            [sys.executable, script, *options], capture_output=True, text=True, timeout=200
        )
        return ended.returncode, ended.stdout

    assert run("--check") == (1, "docs/page.md: stale\n")
    assert page.read_text() == stale
    assert run() == (0, "docs/page.md: brought up to date\n")
    assert "`a.py`\n\n```python\nprint(1)\n```\n" in page.read_text()
    assert run("--check") == (0, "")
    (tmp_path / "a.py").write_text("print(2)\n")
    assert run("--check") == (1, "docs/page.md: stale\n")
    assert run("--nonsense") == (2, "")
