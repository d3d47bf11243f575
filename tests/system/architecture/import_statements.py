"""The import statements of a Python file, for the rules that look at imports. Nothing is imported."""

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ImportStatement:
    """`import a, b` or `from a import b`, and where it stands."""

    node: ast.Import | ast.ImportFrom
    at_top_level: bool  # a statement of the module itself, in no function, class, `if` or `try`
    for_types_only: bool  # below `if TYPE_CHECKING:`, so it is not executed


def import_statements(path: Path) -> list[ImportStatement]:
    """All of them, in the order of the file. Several rules ask for the same files, so the answers are kept."""
    status = path.stat()
    return _read(path, status.st_mtime_ns, status.st_size)


def absolute_names(statement: ImportStatement, package: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """(module, module or name of it) of each name in a statement of a module that lies in `package`.

    For `import a.b` both are a.b; for `from a import b` they are a and a.b.
    """
    node = statement.node
    if isinstance(node, ast.Import):
        yield from ((alias.name, alias.name) for alias in node.names)
        return
    base = list(package[: len(package) - node.level + 1]) if node.level else []
    base += node.module.split(".") if node.module else []
    yield from ((".".join(base), ".".join([*base, alias.name])) for alias in node.names)


@functools.cache
def _read(path: Path, changed: int, size: int) -> list[ImportStatement]:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    return list(_below(tree.body, top=True, types=False))


def _below(nodes, top: bool, types: bool) -> Iterator[ImportStatement]:
    for node in nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield ImportStatement(node, top, types)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            yield from _below(node.body, False, True)
            yield from _below(node.orelse, False, types)
        elif isinstance(
            node, (ast.stmt, ast.excepthandler, ast.match_case)
        ):  # expressions hold no statements
            yield from _below(ast.iter_child_nodes(node), False, types)
