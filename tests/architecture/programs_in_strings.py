"""Finds Python programs that stand in strings, where no linter reads them; for test_architecture.py."""

import ast
import textwrap
import types
from pathlib import Path

LINES = 4  # a string with fewer of them is a one-liner that was wrapped


def programs_in_strings(path: Path) -> list[int]:
    """The numbers of the lines at which a string begins that is a program: Python of several lines with an import."""
    source = path.read_text(encoding="utf-8")
    if not _may_hold_programs(compile(source, path, "exec", dont_inherit=True)):
        return []  # which saves the tree of most files: it takes longer than the compilation
    tree = ast.parse(source)
    return [node.lineno for node in ast.walk(tree) if _is_program(_text(node))]


def _may_hold_programs(code: types.CodeType) -> bool:
    """Whether the word stands in a string, or in a part of one, of this code or of a function in it."""
    return any(map(_mentions_imports, code.co_consts))


def _mentions_imports(constant) -> bool:
    if isinstance(constant, str):
        return "import " in constant
    if isinstance(constant, (tuple, frozenset)):  # the compiler makes one of several constants
        return any(map(_mentions_imports, constant))
    return isinstance(constant, types.CodeType) and _may_hold_programs(constant)


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
