"""What `hvd bench` compares: implementations of collectives, found by the entry points of the group "hvd_core.bench".

A distribution adds one by an entry point: a name, and a subclass of Alternative in a module whose import is cheap.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from typing import Any

import numpy as np

from hvd_core.bench._conductor import Unavailable

# ---- the collectives, with sizes and bandwidths as the accelerators' usual tests count them ---------------------------


@dataclass(frozen=True)
class Kind:
    """One collective. ``shared``: the smaller of a rank's two buffers is the larger one divided by the number of ranks.
    ``bus``: bus bandwidth over algorithm bandwidth, by the number of ranks."""

    shared: bool
    reduces: bool
    has_root: bool
    bus: Callable[[int], float]


def _others(size: int) -> float:
    return (size - 1) / size


KINDS = {
    "allreduce": Kind(False, True, False, lambda size: 2 * _others(size)),
    "allgather": Kind(True, False, False, _others),
    "reducescatter": Kind(True, True, False, _others),
    "broadcast": Kind(False, False, True, lambda size: 1.0),
    "alltoall": Kind(True, False, False, _others),
}

COLLECTIVES = tuple(KINDS)
_HOROVOD_OPS = {"sum": "Sum", "prod": "Product", "min": "Min", "max": "Max", "avg": "Average"}
OPS = tuple(_HOROVOD_OPS)
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")


@dataclass(frozen=True)
class Call:
    """One collective on buffers of one size. ``elements``: of the larger buffer of a rank."""

    collective: str
    dtype: str
    op: str
    root: int
    elements: int
    in_place: bool

    @property
    def kind(self) -> Kind:
        return KINDS[self.collective]

    @property
    def itemsize(self) -> int:
        return 2 if self.dtype == "bfloat16" else np.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        return self.elements * self.itemsize

    def count(self, size: int) -> int:
        """The column "count": elements that a rank sends, or that it gets, whichever are fewer."""
        return self.elements // size if self.kind.shared else self.elements

    def sent(self, size: int) -> int:
        """Elements of a rank's input."""
        return self.elements // size if self.collective == "allgather" else self.elements


def elements_of(nbytes: int, call: Call, size: int) -> int:
    """Elements in ``nbytes`` bytes; at least one, or one for each rank, and a multiple of the ranks where they
    share them."""
    elements = max(1, nbytes // call.itemsize)
    return max(1, elements // size) * size if call.kind.shared else elements


def host_dtype(dtype: str) -> np.dtype:
    """The type in which data are made and compared; NumPy has no bfloat16, and all values here are exact in both."""
    return np.dtype("float32" if dtype == "bfloat16" else dtype)


def data_of(call: Call, rank: int, size: int) -> np.ndarray:
    """The input of a rank: zeros and ones that depend on rank and index, so that every type has exact sums. For products
    one rank in turn has a two."""
    index = np.arange(call.sent(size), dtype=np.uint64)
    mixed = (index * np.uint64(2654435761) + np.uint64(rank * 40503)) >> np.uint64(7)
    data: np.ndarray = mixed & np.uint64(1)
    if call.op == "prod":
        data = 1 + (index % np.uint64(size) == np.uint64(rank))
    return data.astype(host_dtype(call.dtype), copy=False)


def result_of(call: Call, rank: int, size: int) -> np.ndarray:
    """What a rank must find in its output."""
    if call.collective == "broadcast":
        return data_of(call, call.root, size)
    if call.collective == "allgather":
        return np.concatenate([data_of(call, other, size) for other in range(size)])
    if call.collective == "alltoall":
        share = call.elements // size
        return np.concatenate(
            [data_of(call, other, size)[rank * share : (rank + 1) * share] for other in range(size)]
        )
    combine = {"prod": np.multiply, "min": np.minimum, "max": np.maximum}.get(call.op, np.add)
    total = data_of(call, 0, size)
    for other in range(1, size):
        total = combine(total, data_of(call, other, size), dtype=total.dtype)
    if call.op == "avg":
        total = (total / size).astype(total.dtype)
    share = call.elements // size
    return total[rank * share : (rank + 1) * share] if call.collective == "reducescatter" else total


def wrong(found: np.ndarray, call: Call, rank: int, size: int) -> int:
    """How many elements of a rank's output are not what they must be."""
    expected = result_of(call, rank, size)
    if found.shape != expected.shape:
        return max(found.size, expected.size)
    if call.op == "avg" and expected.dtype.kind == "f":
        step = 2.0**-8 if call.dtype == "bfloat16" else float(np.finfo(expected.dtype).eps)
        right = np.abs(found.astype("float64") - expected) <= 4 * step  # not for NaN
        return int((~right).sum())
    return int((found != expected).sum())


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
    """One implementation. It is made once in each rank, on the rank's main thread."""

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
        """Buffers for a call. Raises Unavailable for a call that it does not have."""
        raise NotImplementedError

    def barrier(self) -> None:
        """Meet the other ranks."""
        raise NotImplementedError

    def close(self) -> None:
        """Leave in order."""


def horovod_call(api: Any, call: Call, tensor: Any) -> Callable[[], Any]:
    """A call of Horovod's API on a rank's input. ``api``: hvd_core, or a front end's module. Raises Unavailable if the
    API has no such call."""
    if call.in_place and call.collective not in ("allreduce", "broadcast"):
        raise Unavailable("the API has no form in place")
    more: dict[str, Any] = {"name": f"bench.{call.collective}.{call.elements}.{call.dtype}"}
    if call.kind.reduces:
        more["op"] = getattr(api, _HOROVOD_OPS[call.op])
    if call.kind.has_root:
        more["root_rank"] = call.root
    return partial(getattr(api, call.collective + "_" * call.in_place), tensor, **more)


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
