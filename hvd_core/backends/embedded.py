"""The embedded backends as other programs see them, who read entry points: what pyproject.toml announces.

hvd-core itself never comes here: its own stand in the static table (registry.py), which nothing can replace.
"""

from __future__ import annotations

from pathlib import Path

from hvd_core.backends import registry
from hvd_core.backends.descriptor import BackendDescriptor
from hvd_core.backends.installed_backend import ABI


def shm() -> BackendDescriptor:
    """Between the processes of one host, over shared memory."""
    return _describe("shm")


def tcp() -> BackendDescriptor:
    """Between any processes, over TCP."""
    return _describe("tcp")


def chaos() -> BackendDescriptor:
    """For tests: computes, and misbehaves when told to."""
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
