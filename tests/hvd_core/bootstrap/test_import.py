"""What `import hvd_core` loads, and what a type checker sees of it."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import hvd_core


def test_import_loads_few_modules():
    command = [sys.executable, "-X", "importtime", "-c", "import hvd_core"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in found.stderr.splitlines()}
    assert "hvd_core" in loaded
    assert len([name for name in loaded if name.partition(".")[0] in ("hvd_core", "horovod")]) <= 25
    assert loaded.isdisjoint({"numpy", "hvd_core._core", "psutil", "socket"})


def test_type_checkers_see_exactly_the_public_names():
    """So that a misspelt name is an error for them."""
    tree = ast.parse(Path(hvd_core.__file__).read_text())
    visible, hidden = set(), set()
    for node in tree.body:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name):
            for one in node.body:
                assert isinstance(one, ast.ImportFrom)
                names = {alias.asname or alias.name for alias in one.names}
                visible |= set(import_module(one.module).__all__) if names == {"*"} else names
        elif isinstance(node, ast.If):
            hidden |= {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            visible.add(node.name)
    assert visible | {"__version__"} == set(hvd_core.__all__)
    assert "__getattr__" in hidden


def test_every_name_is_found_where_it_is_expected():
    for name in hvd_core.__all__:
        assert getattr(hvd_core, name) is not None
    assert not hasattr(hvd_core, "allredcue")
