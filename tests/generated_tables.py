"""docs/tables.py, for the tests of the pages whose tables it makes."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"


def assert_up_to_date(page):
    """A page of docs has the table that docs/tables.py makes now."""
    spec = importlib.util.spec_from_file_location("docs_tables", DOCS / "tables.py")
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    text = (DOCS / page).read_text(encoding="utf-8")
    assert tables.updated(page, text) == text, "run: python docs/tables.py"
