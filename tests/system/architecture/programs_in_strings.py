"""Finds Python programs that stand in strings, where no linter reads them; for test_architecture.py."""

import ast
import textwrap
from pathlib import Path

LINES = 4  # a string with fewer of them is a one-liner that was wrapped


def programs_in_strings(path: Path) -> list[int]:
    """The numbers of the lines at which a string begins that is a program: Python of several lines with an import."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node.lineno for node in ast.walk(tree) if _is_program(_text(node))]


def _text(node: ast.AST) -> str:
    """Of a string; a name stands for each value in an f-string."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else "value" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _is_program(text: str) -> bool:
    if "import " not in text or sum(bool(line.strip()) for line in text.splitlines()) < LINES:
        return False
    try:
        tree = ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError):  # ValueError: it holds a zero byte
        return False
    return any(isinstance(node, (ast.Import, ast.ImportFrom)) for node in ast.walk(tree))
