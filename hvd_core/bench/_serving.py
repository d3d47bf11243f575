"""The rank's side of the harness: obeys the conductor (conductor.py) over a Unix socket.

Between two commands a rank sleeps in recv, so that alternatives take turns without disturbing each other. Imports the
standard library only: benchmarks/harness/rank.py loads this file in environments that have no hvd_core.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Client
from typing import Any


def pin(index: int) -> None:
    """Bind this process to the core of rank `index`. Call before libraries start threads."""
    cores = sorted(os.sched_getaffinity(0))
    if os.environ.get("HVD_BENCH_PIN", "1") == "1":
        os.sched_setaffinity(0, {cores[index % len(cores)]})


def env_rank() -> tuple[int, int]:
    """(rank, size) as the launcher of this process has set them in the environment."""
    for rank, size in (
        ("HVD_BENCH_RANK", "HVD_BENCH_SIZE"),
        ("HOROVOD_RANK", "HOROVOD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
    ):
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    raise RuntimeError("no rank in the environment: start this through the benchmark, not by hand")


def serve(rank: int, answer: Callable[[dict[str, Any]], object], close: Callable[[], None]) -> None:
    """Answer the conductor's commands with `answer` until it sends "quit" or is gone; then `close`."""
    with Client(os.environ["HVD_BENCH_SOCKET"], "AF_UNIX") as conductor:
        conductor.send({"rank": rank, "pid": os.getpid()})
        while True:
            try:
                command = conductor.recv()
            except (EOFError, ConnectionError):
                break
            if command["do"] == "quit":
                break
            try:
                answered = answer(command)
            except Exception:
                answered = {"error": traceback.format_exc()}
            conductor.send(answered)
    close()
