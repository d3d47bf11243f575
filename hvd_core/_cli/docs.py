"""``hvd docs [PAGE]``: the pages of the documentation that are in the wheel. Without a page: their list."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hvd_core._cli import output
from hvd_core._config.hints import did_you_mean
from hvd_core._config.packaged import package_folders, reinstall

_EXAMPLE = "loopback"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("page", metavar="PAGE", nargs="?", help="a page's name, such as backend-abi")
    output.add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    """Print the list or one page. Raises ValueError for a page that does not exist, FileNotFoundError without pages."""
    pages = find()
    if options.page is None:
        rows = [(name, str(path), _title(path)) for name, path in pages.items()]
        if options.json:
            output.document([dict(zip(("page", "file", "title"), row)) for row in rows])
        else:
            output.table(("page", "what it is about"), [(name, title) for name, _, title in rows])
            output.text("", "hvd docs PAGE prints one; they lie in " + str(next(iter(pages.values())).parent))
        return output.OK
    name = options.page.lower().removesuffix(".md")
    if name not in pages:
        raise ValueError(
            f"there is no page '{options.page}'.{did_you_mean(name, list(pages))} list: hvd docs"
        )
    text = pages[name].read_text(encoding="utf-8")
    if options.json:
        output.document({"page": name, "file": str(pages[name]), "text": text})
    else:
        sys.stdout.write(text)
    return output.OK


def find() -> dict[str, Path]:
    """The files by their pages' names, of this installation or of the source tree around the package."""
    for package in package_folders():
        for folder, example in (
            (package / "docs",) * 2,
            (package.parent / "docs", package.parent / "tests" / "abi"),
        ):
            pages = {path.stem: path for path in sorted(folder.glob("*.md"))}
            if "plugins" in pages:
                source = example / f"{_EXAMPLE}.cc"
                return pages | ({_EXAMPLE: source} if source.is_file() else {})
    raise FileNotFoundError(f"the pages are not in this installation.\n  fix: {reinstall()}")


def _title(path: Path) -> str:
    first = path.read_text(encoding="utf-8").lstrip().splitlines()[0]
    return first.lstrip("#/ ")
