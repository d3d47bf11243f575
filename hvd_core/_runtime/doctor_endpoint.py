"""What `hvd doctor` is told about a process: the name of its socket, and facts that do not change while the job runs.

Called by init(), on its thread. The engine serves the socket (engine/doctor.h),
hvd_core/_cli/doctor.py finds it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvd_core._bootstrap import World

PREFIX = "hvd-doctor-"
"""Begins the abstract names of the sockets. The user's number and a random word follow."""


def prefix_of(user: int) -> str:
    """Begins the names of one user's sockets. Names are not protected: the kernel says whose process serves one."""
    return f"{PREFIX}{user}-"


def doctor(world: World, engine_config: dict[str, Any], rings: dict[str, Any]) -> tuple[str, str]:
    """(name of the socket, facts as one line of JSON). ``rings``: see observe/watch/start.py."""
    from hvd_core.version import __version__

    facts = {
        "job": job_name(world),
        "rank": world.rank,
        "size": world.size,
        "pid": os.getpid(),
        "hosts": list(world.hosts),
        "host_names": list(world.host_names),
        "pids": list(world.pids),
        "launcher": world.launcher,
        "version": __version__,
        "python": sys.version.split()[0],
        "backends": backends(engine_config),
        "rings": rings,
        "since": time.time(),
    }
    return f"{prefix_of(os.geteuid())}{os.urandom(8).hex()}", json.dumps(facts)


def job_name(world: World) -> str:
    """A name that all ranks of this job have, and no other job."""
    if not world.secret:
        return f"single-{os.getpid()}-{os.urandom(3).hex()}"
    return f"{hashlib.sha256(world.secret).hexdigest()[:12]}-{world.epoch}"


def backends(config: dict[str, Any]) -> list[str]:
    """The backends that the engine uses, in words."""
    found = []
    for key, words in (("local_backend", "within a host"), ("global_backend", "between hosts")):
        if config.get(key):
            found.append(f"{config[key][0]} {words}")
    for device in config.get("devices", ()):
        names = {route[0] for route in device["routes"].values() if route}
        found.append(f"{', '.join(sorted(names)) or 'host memory (staged)'} for device type {device['type']}")
    return found
