"""The embedded backends as entry points of pyproject.toml, for other programs that read entry points.

hvd-core itself does not use these functions: it reads the static table (discovery/registry.py), which no plugin can
replace.
"""

from __future__ import annotations

from pathlib import Path

from hvd_core.backends.descriptor import BackendDescriptor
from hvd_core.backends.discovery import registry
from hvd_core.backends.discovery.installed_backend import ABI


def shm() -> BackendDescriptor:
    """Collectives between the processes of one host, over shared memory."""
    return _describe("shm")


def tcp() -> BackendDescriptor:
    """Collectives between any processes, over TCP."""
    return _describe("tcp")


def chaos() -> BackendDescriptor:
    """A backend for tests that computes correctly, and fails on request."""
    return _describe("chaos")


def _describe(name: str) -> BackendDescriptor:
    backend = next(b for b in registry.embedded() if b.name == name)
    return backend.descriptor or BackendDescriptor(
        name=name,
        abi=ABI,
        devices=backend.devices,
        provides=backend.provides,
        library=Path(backend.path()),
        priority=backend.priority,
        spans_hosts=backend.spans_hosts,
    )
