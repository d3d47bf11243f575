"""tools/wheels.py and tools/interpreters.py: which Pythons are built for; the same sources give the same bytes."""

import hashlib
import importlib
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FACTS = {"version": [3, 14, 0], "free_threaded": False, "headers": True, "venv": True, "cpython": True}


@pytest.fixture
def interpreters(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("interpreters")


def test_the_python_of_the_tests_is_found(interpreters):
    (found,) = interpreters.find([sys.executable])
    assert found.version == sys.version_info[:3]
    assert found.tag == f"cp3{sys.version_info.minor}"


def test_one_python_of_each_minor_version_is_found(interpreters):
    minors = [python.minor for python in interpreters.find([])]
    assert len(set(minors)) == len(minors)
    assert minors == sorted(minors, key=lambda minor: int(minor.split(".")[1]))


@pytest.mark.parametrize(
    ("fact", "value", "reason"),
    [
        ("free_threaded", True, "free-threaded"),
        ("headers", False, "Python.h"),
        ("venv", False, "venv"),
        ("cpython", False, "CPython"),
        ("version", [3, 9, 1], "3.10"),
    ],
)
def test_reason_why_a_python_is_left_out(interpreters, fact, value, reason):
    assert interpreters._reason_against(FACTS) is None
    assert reason in interpreters._reason_against({**FACTS, fact: value})


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_same_sources_give_the_same_bytes(interpreters, monkeypatch, tmp_path):
    """A backend's wheel and the sdist, built in two folders."""
    wheels = importlib.import_module("wheels")
    (python,) = interpreters.find([sys.executable])
    for name in ("CC", "CXX", "CFLAGS", "CXXFLAGS", "SOURCE_DATE_EPOCH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    skipped = shutil.ignore_patterns("build", "dist", ".venv*", "*.so", "__pycache__", ".git", "out")
    sums = []
    for folder in (tmp_path / "one", tmp_path / "another_one"):
        shutil.copytree(ROOT, folder, ignore=skipped)
        dist = tmp_path / f"dist-{folder.name}"
        dist.mkdir()
        monkeypatch.setattr(wheels, "ROOT", folder)
        with monkeypatch.context() as variables:
            variables.setenv("CXXFLAGS", "")
            variables.setenv("CFLAGS", "")
            wheels.set_environment()
            headers = folder / "hvd_core" / "include"
            built = wheels.build_wheel(
                python,
                folder / "backends" / "eccl_stub",
                dist,
                [
                    f"--config-settings=build-dir={folder}/build/stub",
                    f"--config-settings=cmake.define.HVD_INCLUDE_DIR={headers}",
                ],
            )
            source = wheels._sdist(python, dist)
        sums.append([hashlib.sha256(path.read_bytes()).hexdigest() for path in (built, source)])
    assert sums[0] == sums[1]
