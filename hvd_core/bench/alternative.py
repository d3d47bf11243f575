"""Ways to carry out a collective that `hvd bench` compares, found through the entry points of the group "hvd_core.bench".

A distribution adds one by an entry point: a name, and a subclass of Alternative in a module whose import is cheap.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

import numpy as np

from hvd_core.bench.collectives import Call
from hvd_core.bench.conductor import Unavailable

GROUP = "hvd_core.bench"


@dataclass(frozen=True)
class Place:
    """This rank. ``folder``: one that all ranks can read, or None where they are on several hosts. ``from_root``: gives
    every rank the bytes that rank 0 passes, or None where the ranks have a folder for that."""

    rank: int
    size: int
    local_rank: int
    device: str
    folder: str | None
    from_root: Callable[[bytes], bytes] | None


@dataclass
class Bound:
    """One call on buffers that exist. ``run`` carries it out, ``finish`` waits for a device, ``fill`` writes the input,
    ``result`` reads the output."""

    run: Callable[[], Any]
    fill: Callable[[np.ndarray], None]
    result: Callable[[], np.ndarray]
    finish: Callable[[], Any] = lambda: None


class Alternative:
    """One way. It is made once in each rank, on the rank's main thread."""

    title = ""
    launcher = "horovodrun"
    """The program that starts its ranks: "horovodrun", "mpirun", or "" if the conductor starts each."""
    over_backends = True
    """Whether HOROVOD_BACKEND chooses what it runs on."""
    host_memory_only = False

    def __init__(self, place: Place) -> None:
        self.place = place

    @classmethod
    def needs(cls) -> list[tuple[str, str]]:
        """(module, how to get it) of all that must be importable."""
        return []

    @classmethod
    def check(cls, device: str) -> None:
        """Raises Unavailable where it cannot run. Called without ranks."""
        for module, how in cls.needs():
            need(module, how)
        if cls.host_memory_only and device != "cpu":
            raise Unavailable(f"it has no tensors on the device type {device}")

    def bind(self, call: Call) -> Bound:
        """Buffers for a call. Raises Unavailable for a call that this way does not have."""
        raise NotImplementedError

    def barrier(self) -> None:
        """Meet the other ranks."""
        raise NotImplementedError

    def close(self) -> None:
        """Leave in order."""


def need(module: str, how: str) -> None:
    """Raise Unavailable unless this interpreter can import `module`."""
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise Unavailable(f"there is no {module} here: {how}")


def catalog() -> dict[str, Callable[[], type[Alternative]]]:
    """How to load each alternative, by its name, those of hvd-core first."""
    found = sorted(entry_points(group=GROUP), key=lambda e: (not e.value.startswith("hvd_core."), e.name))
    return {entry.name: entry.load for entry in found}


def device_of_rank() -> str:
    """The device type for this rank, as the conductor has set it."""
    return os.environ.get("HVD_BENCH_DEVICE", "cpu")
