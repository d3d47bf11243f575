"""Starts the watcher of a host, where a setting asks for the live timeline or for metrics. Called by init(), on its
thread.

One rank per host starts it, the first. It is no child of that rank, so that it outlives the rank, and a program that
waits for its children does not find it.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib.util
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvd_core._base.sockets import DescriptorSet, join_address

if TYPE_CHECKING:
    from hvd_core._bootstrap.world import World
    from hvd_core._config.settings import EngineSettings

CONFIG = "HVD_WATCHER"
"""The variable in which the watcher gets its configuration."""
_RENDEZVOUS_S = 30.0
_log = logging.getLogger("horovod")
_owner = DescriptorSet()
"""A pipe to the watcher of this process, which ends when it is closed, and not because of a forked child."""


def start(settings: EngineSettings, world: World, place: dict[str, Any], backends: list[str]) -> None:
    """Start it if this rank is the first of its host and a setting asks for it. A job runs without it as well: a
    failure to start it is logged as a warning. ``place``: of the rings, see facts()."""
    if world.local_rank != 0:
        return
    why = settings.watched and reason_not_started(settings)
    is_shown = bool(settings.timeline_live) and not why
    listener, first_host = _rendezvous(world, is_shown)
    if why or not settings.watched:
        return _log.warning("%s", why) if why else None
    config = {
        "listener": -1 if listener is None else listener.fileno(),
        "first host": first_host,
        "hosts key": _key_of(world.secret, f"{world.epoch}"),
        "first rank": world.rank,
        "place": place,
        "backends": backends,
        "page_port": settings.timeline_live,
        "metrics_port": settings.metrics_port,
        "metrics_address": settings.metrics_address,
        # The process of the watcher has another current folder.
        "token_file": settings.watch_token_file and os.path.abspath(settings.watch_token_file),
        "host": world.host_names[world.rank],
        "size": world.size,
        "job": place["job"],
        "other hosts": "" if listener else _note(world, first_host),
    }
    try:
        _launch(config)
    except Exception as error:
        _log.warning("neither live timeline nor metrics are served: %s", error)
    finally:
        if listener is not None:
            listener.close()


def _rendezvous(world: World, is_shown: bool) -> tuple[socket.socket | None, str]:
    """(The listener on rank 0, its address on the first rank of another host), for the connections between the watchers
    of a job. Rank 0 always publishes an address, an empty one if it has no watcher."""
    if len(set(world.hosts)) < 2 or world.store is None:
        return None, ""
    key = f"watch/{world.epoch}"
    if world.rank != 0:
        found = world.store.get(key, _RENDEZVOUS_S) if is_shown else None
        return None, (found or b"").decode()
    listener, address = None, ""
    if is_shown:
        from hvd_core._base.listener import listen

        host = world.store.local_host()  # of the interface that leads to the store, as for the links
        try:
            listener = listen(host)
            address = join_address(*listener.getsockname()[:2])
        except OSError as error:
            _log.warning(
                "the live timeline shows each host by itself: no port of %s can be had: %s", host, error
            )
    world.store.set(key, address.encode())
    return listener, ""


def _key_of(secret: bytes, job: str) -> str:
    """The key of a job's watchers, which do not have the job's secret itself; empty for one process."""
    return hmac.new(secret, b"watchers of " + job.encode(), hashlib.sha256).hexdigest() if secret else ""


def _note(world: World, first_host: str) -> str:
    note = on_other_hosts(world.rank, world.hosts, world.host_names)
    return f"{note}; that of {world.host_names[0]} shows all ranks" if first_host else note


def on_other_hosts(rank: int, hosts: Sequence[int], names: Sequence[str]) -> str:
    """What a page says about ranks that it does not show; empty if all are on the host of ``rank``. ``hosts``,
    ``names``: the host of each rank, and its name."""
    others = [other for other, host in enumerate(hosts) if host != hosts[rank]]
    if not others:
        return ""
    found = ", ".join(dict.fromkeys(names[other] for other in others))
    return (
        f"This page shows the ranks of one host. {len(others)} of {len(hosts)} ranks are on other hosts ({found}), each "
        "with a page of its own"
    )


def reason_not_started(settings: EngineSettings) -> str:
    """Why there can be no watcher; empty if there can."""
    if not settings.flight_recorder:
        return (
            "neither live timeline nor metrics are served: they are read from the flight recorder, and "
            "HOROVOD_FLIGHT_RECORDER=0 is set"
        )
    if settings.metrics_port and importlib.util.find_spec("prometheus_client") is None:
        return (
            "neither live timeline nor metrics are served: HOROVOD_METRICS_PORT needs the package prometheus-client, "
            "which is not installed: pip install prometheus-client"
        )
    return ""


def facts(world: World, observes: dict[str, Any]) -> dict[str, Any]:
    """Where the rings of this rank's host are: for the watcher, and for `hvd timeline --live` through `hvd doctor`.
    ``observes``: the engine's settings of the observer."""
    found: dict[str, Any] = {
        "job": observes["job"],
        "pid": os.getpid(),
        "segment_fd": -1,
        "slots": 0,
        "file": "",
    }
    if not observes["recorder"]:
        return found
    if world.segment_fd >= 0:
        found |= {"segment_fd": world.segment_fd, "slots": world.local_size}
    elif world.size > 1 or observes["watched"]:
        found["file"] = os.path.abspath(Path(observes["flight_folder"]) / f"rank-{world.rank}.flight")
    return found


def _launch(config: dict[str, Any]) -> None:
    _owner.close()  # of a job before this one: its watcher gives up the ports
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    _owner.own(theirs)
    try:
        root = str(Path(__file__).resolve().parents[3])
        given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        paths = [root, *map(os.path.abspath, given)]
        segment = config["place"]["segment_fd"]
        kept = [fd for fd in (segment, ours, config["listener"]) if fd >= 0]
        config["owner"] = ours
        environment = {
            **os.environ,
            CONFIG: json.dumps(config),
            "PYTHONPATH": os.pathsep.join(paths),
            # The folder of the program may have a module of the name of one of the standard library's.
            "PYTHONSAFEPATH": "1",
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "hvd_core._observe.watch.watcher"]
        # The shell ends immediately.
        subprocess.run(
            ["/bin/sh", "-c", '"$@" &', "sh", *command],
            env=environment,
            pass_fds=kept,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            check=False,
        )
    finally:
        os.close(ours)
