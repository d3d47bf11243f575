"""Circles of imports between Python modules, and of includes between folders of C++. Nothing is imported or compiled."""

import re
from collections.abc import Iterable
from pathlib import Path

from import_statements import absolute_names, import_statements

_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')


def modules_below(root: Path, packages: Iterable[str]) -> dict[str, Path]:
    """{dotted name: file} of the modules of these packages. A package's name is that of its __init__.py."""
    found = {}
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported_modules(name: str, path: Path, modules: dict[str, Path]) -> set[str]:
    """The members of `modules` that a module imports at any time, itself and its own packages left out."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for statement in import_statements(path):
        if not statement.for_types_only:
            # `from a import b` imports the module a.b if there is one, else it reads a name of the module a.
            pairs = absolute_names(statement, tuple(package))
            found.update(full if full in modules else module for module, full in pairs)
    return {target for target in found if target in modules and target != name}


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """The sets of nodes that reach each other (strongly connected, of two or more), each sorted."""
    reach: dict[str, set[str]] = {}
    for start in arrows:
        seen: set[str] = set()
        waiting = list(arrows[start])
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting.extend(arrows.get(node, ()))
        reach[start] = seen
    found = {
        tuple(sorted(other for other in reach[node] if node in reach.get(other, ())))
        for node in arrows
        if node in reach[node]
    }
    return [list(circle) for circle in sorted(found)]


def module_arrows(root: Path, packages: Iterable[str]) -> dict[str, set[str]]:
    """{module: modules that it imports at any time}."""
    modules = modules_below(root, packages)
    return {name: imported_modules(name, path, modules) for name, path in modules.items()}


def folder_arrows(root: Path, packages: Iterable[str]) -> dict[str, set[str]]:
    """{folder: folders whose modules it imports}. The top folders are left out: they hold the lowest modules as well as
    the highest ones."""
    packages = list(packages)
    modules = modules_below(root, packages)

    def folder_of(name: str) -> str:
        return ".".join(modules[name].relative_to(root).parent.parts)

    arrows: dict[str, set[str]] = {}
    for name, path in modules.items():
        own = folder_of(name)
        if own in packages:
            continue
        targets = {folder_of(target) for target in imported_modules(name, path, modules)}
        arrows.setdefault(own, set()).update(targets - {own, *packages})
    return arrows


def wrong_arrows(engine: Path, allowed: dict[str, set[str]], exceptions: dict[str, set[str]]) -> list[str]:
    """Includes between the folders of the engine that `allowed` does not list, as `path:line: the fault`.

    Args:
        engine: the folder of the engine. Its own files count as the folder "engine".
        allowed: {folder: folders whose headers it may include}.
        exceptions: {file, relative to `engine`: folders that it alone may include besides}.
    """
    found = []
    for path in sorted(engine.rglob("*")):
        if path.suffix not in (".cc", ".h", ".inc"):
            continue
        relative = path.relative_to(engine)
        own = relative.parts[0] if len(relative.parts) > 1 else "engine"
        if own not in allowed:
            found.append(f"{path}:1: the folder {own} has no place in the order of the engine's folders")
            continue
        may = allowed[own] | exceptions.get(relative.as_posix(), set()) | {own}
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            match = _INCLUDE.match(line)
            name = match[1].removeprefix("engine/") if match else ""
            if not name or (path.parent / name).is_file() or not (engine / name).is_file():
                continue
            target = name.split("/")[0] if "/" in name else "engine"
            if target not in may:
                found.append(f"{path}:{number}: {own} includes {name}, which lies above it or beside it")
    return found
