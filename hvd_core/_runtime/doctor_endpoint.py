"""The endpoint of this process for `hvd doctor`: the name of its socket, and facts that do not change while the job runs.

Called by init(), on its thread. The engine serves the socket (engine/watch/doctor.h),
hvd_core/_cli/doctor.py finds it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvd_core._bootstrap.world import World
    from hvd_core._runtime.engine_config import EngineConfig

PREFIX = "hvd-doctor-"
"""Begins the abstract names of the sockets. The user's number and a random word follow."""


def prefix_of(user: int) -> str:
    """Begins the names of one user's sockets. Names are not protected: the kernel says whose process serves one."""
    return f"{PREFIX}{user}-"


def doctor(world: World, config: EngineConfig, rings: dict[str, Any]) -> tuple[str, str]:
    """(name of the socket, facts as one line of JSON). ``rings``: see _observe/watch/start.py."""
    from hvd_core.version import __version__

    facts = {
        "job": config.observe["job"],
        "rank": world.rank,
        "size": world.size,
        "pid": os.getpid(),
        "hosts": list(world.hosts),
        "host_names": list(world.host_names),
        "pids": list(world.pids),
        "launcher": world.launcher,
        "version": __version__,
        "python": sys.version.split()[0],
        "backends": backends(config),
        "rings": rings,
        "since": time.time(),
    }
    return f"{prefix_of(os.geteuid())}{os.urandom(8).hex()}", json.dumps(facts)


def backends(config: EngineConfig) -> list[str]:
    """The backends that the engine uses, in words."""
    found = []
    for library, where in ((config.local_backend, "within a host"), (config.global_backend, "between hosts")):
        if library:
            found.append(f"{library[0]} {where}")
    for device in config.devices:
        names = {route[0] for route in device["routes"].values() if route}
        found.append(f"{', '.join(sorted(names)) or 'host memory (staged)'} for device type {device['type']}")
    return found
