"""Backends on foreign devices, and facts about a library: fields that were appended to their structs."""

import pytest

from abi_toolchain import HERE
from hvd_core import _core
from hvd_core.backends import BackendOpenError


def test_abi_foreign_devices(toolchain):
    library = toolchain.library(HERE / "foreign_device.cc", "foreign_device")
    done = toolchain.run(toolchain.program(HERE / "foreign_device_driver.cc"), library)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "all good\n"


def test_facts_in_python(toolchain, monkeypatch):
    monkeypatch.setattr(toolchain, "sanitize", [])  # Python itself was built without
    library = str(toolchain.library(HERE / "foreign_device.cc", "foreign_device-plain"))
    assert _core.backend_fact("foreign_device", library, "library") == "Foreign ? 1.0"
    assert _core.backend_fact("foreign_device", library, "nonsense") is None
    with pytest.raises(BackendOpenError, match=r"foreign_device: info: it broke \(DEVICE"):
        _core.backend_fact("foreign_device", library, "broken")
    caps = _core.inspect_backend("foreign_device", library)["caps"]
    assert caps == ["REQUEST", "MEM_HOST", "MEM_DEVICE"]
