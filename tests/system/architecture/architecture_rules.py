"""The rules between the components, as functions that return violations: `path:line: the fault`.

Pure text and syntax-tree checks: nothing is imported or compiled. test_architecture.py runs them on the
project, and on made-up files that break each rule, so that a rule that catches nothing is noticed.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from import_statements import absolute_names, import_statements

FRAMEWORKS = ("torch", "tensorflow", "keras", "mxnet", "jax", "spark", "ray")
# Also the frameworks' own packages, which another framework's folder must not import.
FRAMEWORK_PACKAGES = (*FRAMEWORKS, "pyspark", "jaxlib", "torchvision", "pytorch_lightning", "lightning")

# Names that hvd_core must not know. Launchers (mpirun, srun, torchrun) are not frameworks: the bootstrap deals with the
# program that starts the ranks.
FOREIGN_WORDS = (
    *("torch", "pytorch", "tensorflow", "keras", "mxnet", "jax", "paddle", "pyspark"),
    *(
        "cuda",
        "nccl",
        "nvidia",
        "hip",
        "rocm",
        "rccl",
        "amd",
        "sycl",
        "oneccl",
        "xpu",
        "habana",
        "hccl",
        "gaudi",
    ),
    *("gcu", "eccl", "enflame", "topsrt", "npu", "ascend", "gloo", "ucc", "ucx"),
)
# An underscore separates words here: cuda_stream is a violation as much as "cuda stream".
_FOREIGN = re.compile(rf"(?<![A-Za-z0-9])({'|'.join(FOREIGN_WORDS)})(?![A-Za-z0-9])", re.IGNORECASE)

CXX_SUFFIXES = (".cc", ".h", ".hpp", ".c", ".inc")
_INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def sources(folder: Path, *suffixes: str) -> Iterator[Path]:
    """Files below `folder` that end in one of `suffixes` (without suffixes: all text files of ours). No build outputs."""
    suffixes = suffixes or (".py", *CXX_SUFFIXES, ".txt", ".toml")
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).parts
        if path.is_file() and path.suffix in suffixes and not {"__pycache__", "build"} & set(inside):
            yield path


def foreign_words(folder: Path, allowed: dict[str, set[str]]) -> list[str]:
    """Framework or vendor words below `folder`; `allowed`: relative path -> words that may stand there."""
    found = []
    for path in sources(folder):
        pardoned = allowed.get(path.relative_to(folder).as_posix(), set())
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            for word in _FOREIGN.findall(line):
                if word.lower() not in pardoned:
                    found.append(f"{path}:{number}: names '{word}': {line.strip()}")
    return found


def includes(path: Path) -> Iterator[tuple[int, bool, str]]:
    """(line number, is it in quotes, name) of every #include of a file."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        match = _INCLUDE.match(line)
        if match:
            yield number, match[1] == '"', match[2]


def backend_includes(backend: Path, shared: tuple[str, ...] = ()) -> list[str]:
    """Includes of a backend's folder that are neither <hvd/...>, nor its own files, nor the system's.

    ``shared``: folders beside it whose files it may include too, as "folder/file.h".
    """
    found = []
    for path in sources(backend, *CXX_SUFFIXES):
        for number, quoted, name in includes(path):
            own = (
                any((base / name).is_file() for base in (path.parent, backend))
                and ".." not in Path(name).parts
            )
            of_shared = Path(name).parts[0] in shared
            if quoted and not own and not of_shared and not name.startswith("hvd/"):
                found.append(
                    f'{path}:{number}: includes "{name}", which is not its own; the contract is <hvd/...>'
                )
            if not quoted and re.match(r"(engine|backends|hvd_core|pybind11)/|Python\.h$", name):
                found.append(
                    f"{path}:{number}: includes <{name}>; a backend knows only <hvd/...> and the system"
                )
    return found


def binding_includes(engine: Path) -> list[str]:
    """Files of the engine outside python/ that know pybind11 or Python."""
    found = []
    for path in sources(engine, *CXX_SUFFIXES):
        if path.relative_to(engine).parts[0] == "python":
            continue
        for number, _, name in includes(path):
            if name.startswith("pybind11") or name in ("Python.h", "structmember.h"):
                found.append(f"{path}:{number}: includes {name}; only engine/python may")
    return found


def imports(path: Path, package: tuple[str, ...], top_level_only: bool = False) -> Iterator[tuple[int, str]]:
    """(line number, absolute dotted name) of every import of a Python file that lies in `package`."""
    for statement in import_statements(path):
        if statement.at_top_level or not top_level_only:
            # `from horovod import torch` names a module too.
            for _, name in absolute_names(statement, package):
                yield statement.node.lineno, name


def _reaches(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(module + ".") for module in modules)


def forbidden_imports(
    root: Path, folder: str, forbidden: tuple[str, ...], top_level_only: bool = False
) -> list[str]:
    """Imports below root/folder (such as "horovod/torch") that reach one of the modules `forbidden`."""
    paths = sources(root / folder, ".py")
    return [fault for path in paths for fault in forbidden_imports_of(path, root, forbidden, top_level_only)]


def forbidden_imports_of(
    path: Path, root: Path, forbidden: tuple[str, ...], top_level_only: bool = False
) -> list[str]:
    """The same for one file below root."""
    package = path.relative_to(root).parent.parts
    return [
        f"{path}:{number}: imports {name}, which {path.relative_to(root)} must not know"
        for number, name in imports(path, package, top_level_only)
        if _reaches(name, forbidden)
    ]


def without_purpose(folders: list[Path]) -> list[str]:
    """Files that do not open with a statement of their purpose."""
    found = []
    for folder in folders:
        for path in sources(folder, ".py", *CXX_SUFFIXES):
            text = path.read_text(encoding="utf-8").lstrip()
            if text.startswith("#!"):
                text = text.partition("\n")[2].lstrip()
            opening = ("//", "/*") if path.suffix in CXX_SUFFIXES else ("#", '"""', "'''", 'r"""')
            if text and not text.startswith(opening):
                found.append(f"{path}: does not open with its purpose")
    return found


def leftovers(folders: list[Path]) -> list[str]:
    """Notes of authors to themselves, which must not be left in finished work."""
    pattern = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    found = []
    for folder in folders:
        for path in sources(folder):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                if pattern.search(line):
                    found.append(f"{path}:{number}: {line.strip()}")
    return found


def ways_to_pass_unseen(tests: Path) -> list[str]:
    """Tests, and checks that ranks execute, which may pass without a test: they return early, or consist of one `if`."""
    found = []
    for path in sources(tests, ".py"):
        prefix = {"test": "test_", "ranks": "check_"}.get(path.stem.partition("_")[0])
        if prefix is None:
            continue
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef) and function.name.startswith(prefix):
                body = function.body[1:] if ast.get_docstring(function) else function.body
                alone = len(body) == 1 and isinstance(body[0], ast.If) and not body[0].orelse
                for node in [*_returns(function), *(body if alone else [])]:
                    found.append(f"{path}:{node.lineno}: {function.name} may pass without a test")
    return found


def _returns(node: ast.AST) -> Iterator[ast.Return]:
    """The returns of a function, without those of the functions in it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Return):
            yield child
        elif not isinstance(child, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
            yield from _returns(child)
