"""The plugin of TensorFlow's simulated device, tests/simulators/tf_gcu: its declarations, and its answer to a
library that cannot be opened."""

import importlib.util
import subprocess
from pathlib import Path

import pytest

from harness.installed import need

HERE = Path(__file__).resolve().parent
PLUGIN = HERE.parents[1] / "simulators" / "tf_gcu"


def test_declarations_are_tensorflows():
    if not (PLUGIN / "csrc").is_dir():
        pytest.skip("the sources of tf_gcu are not beside the tests")
    include = Path(importlib.util.find_spec("tensorflow").submodule_search_locations[0]) / "include"
    command = [
        "c++",
        "-std=c++17",
        "-fsyntax-only",
        "-I",
        include,
        "-I",
        PLUGIN / "csrc",
        HERE / "tf_abi_check.cc",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_library_that_cannot_be_opened_is_named(monkeypatch):
    need("tf_gcu")
    import tf_gcu

    monkeypatch.setenv("HOROVOD_BACKEND_ECCL_STUB_LIBRARY", "/nowhere/libeccl.so")
    with pytest.raises(RuntimeError, match=r"tf_gcu: /nowhere/libeccl\.so cannot be used"):
        tf_gcu.load()
