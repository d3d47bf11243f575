"""Backends on devices that another opened, and facts about a library: fields that came at the end of their structs."""

import pytest

from abi_toolchain import HERE
from hvd_core import _core
from hvd_core.backends import BackendOpenError


def test_abi_guest_on_others_devices(toolchain):
    library = toolchain.library(HERE / "guest.cc", "guest")
    done = toolchain.run(toolchain.program(HERE / "guest_driver.cc"), library)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "all good\n"


def test_facts_in_python(toolchain, monkeypatch):
    monkeypatch.setattr(toolchain, "sanitize", [])  # Python itself was built without
    library = str(toolchain.library(HERE / "guest.cc", "guest-plain"))
    assert _core.backend_fact("guest", library, "library") == "Guest ? 1.0"
    assert _core.backend_fact("guest", library, "nonsense") is None
    with pytest.raises(BackendOpenError, match=r"guest: info: it broke \(DEVICE"):
        _core.backend_fact("guest", library, "broken")
    caps = _core.inspect_backend("guest", library)["caps"]
    assert caps == ["REQUEST", "MEM_HOST", "MEM_DEVICE"]
