"""A backend's name and origin, known before any of its code is imported."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hvd_core.backends.static_description import StaticDescription

GROUP = "hvd_core.backends"  # the entry-point group that plugins announce themselves in
NAME = re.compile(r"[a-z0-9_-]{1,32}")

EMBEDDED, WHEEL, PATH, PYTHON = "embedded", "wheel", "path", "python"


@dataclass(frozen=True)
class Candidate:
    """A backend that can be selected by its name.

    ``origin``: "embedded"; "wheel", an entry point of an installed distribution; "path", a library that
    HOROVOD_BACKEND_PATH_<NAME> names; "python", a class registered in this process.
    """

    name: str
    origin: str
    distribution: str | None = None
    version: str | None = None
    entry: str | None = None
    """``module:attribute`` of the entry point."""
    location: str | None = None
    """The folder in which the distribution's metadata lie; for a path, the library."""
    metadata: str | None = None
    """Name of the folder with the distribution's metadata, for instance ``x-1.0.dist-info``."""
    for_tests: bool = False
    """Whether the backend exists for tests only; messages do not list it."""
    from_spec: bool = False
    """Whether the launcher found it, perhaps on another host."""
    static: StaticDescription | None = None
    """What the wheel says about the backend without running code; None if the wheel says nothing, or nothing readable."""

    def describe_origin(self) -> str:
        """``embedded``, ``hvd-backend-x 0.3.0``, ``HOROVOD_BACKEND_PATH_X`` or ``registered in Python``."""
        if self.origin == WHEEL:
            return f"{self.distribution} {self.version}"
        if self.origin == PATH:
            return f"HOROVOD_BACKEND_PATH_{self.name.upper()}"
        return "registered in Python" if self.origin == PYTHON else self.origin

    def describe_place(self) -> str:
        """``hvd-backend-x 0.3.0 in /usr/lib/python3/dist-packages``: tells two distributions of one name apart."""
        return self.describe_origin() + (f" in {self.location}" if self.location else "")


@dataclass(frozen=True)
class Problem:
    """An entry point of the group that is not used, with the reason. It does not stop a job by itself.

    ``kind``: "duplicate", "current-directory", "reserved" (an embedded backend has the name), "name" (not a valid name),
    "metadata" (unreadable), "description" (its NAME.hvd.toml has faults), "broken" (the backend cannot be described or
    loaded).
    """

    name: str
    kind: str
    text: str
