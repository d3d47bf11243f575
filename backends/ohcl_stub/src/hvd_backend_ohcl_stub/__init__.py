"""The description of this backend.

A job that uses the backend imports this module before any framework: keep it light.
"""

from __future__ import annotations

from pathlib import Path

from hvd_core.backends.descriptor import BackendDescriptor

_HERE = Path(__file__).resolve().parent


def describe() -> BackendDescriptor:
    """The entry point. Give it a `probe` where the library may be missing: docs/write-a-backend.md has one."""
    library = _HERE / "lib" / "libhvd_backend_ohcl_stub.so"
    return BackendDescriptor.from_file(_HERE / "ohcl_stub.hvd.toml", library=library)
