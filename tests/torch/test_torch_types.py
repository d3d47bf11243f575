"""Types and documentation of the public functions: complete for each, and right for a program that mypy checks."""

import inspect
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import horovod
import hvd_core
from harness.installed import Later, need
from one_process import in_one_process

need("torch")
hvd = Later("horovod.torch")


@in_one_process
def test_each_function_has_types_and_documentation():
    names = [name for name in hvd.__all__ if inspect.isroutine(getattr(hvd, name))]
    assert len(names) > 40
    for name in names:
        function = getattr(hvd, name)
        hints = typing.get_type_hints(function)
        text = inspect.getdoc(function) or ""
        for parameter in inspect.signature(function).parameters:
            assert parameter in hints, f"{name}({parameter}) has no type"
            assert parameter in text, f"{name}({parameter}) is not in the documentation"
        assert "return" in hints, f"{name} does not say what it returns"
        if "tensor" in hints or "tensors" in hints:
            for part in ("Args:", "Returns:", "Raises:"):
                assert part in text, f"{name}: the documentation has no part {part}"


def test_packages_are_marked_as_typed():
    for package in (horovod, hvd_core):
        assert (Path(package.__file__).parent / "py.typed").exists()


@pytest.mark.slow  # mypy reads all of torch
@pytest.mark.timeout(600)
def test_a_strictly_checked_program(tmp_path):
    need("mypy")
    root = Path(horovod.__file__).parents[1]
    program = Path(__file__).with_name("typed_client.py")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--follow-imports=silent",
            "--cache-dir",
            str(tmp_path),
            program,
        ],
        env={"MYPYPATH": str(root), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stdout + done.stderr
