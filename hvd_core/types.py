"""Element types, reductions, collectives and operations: numbers, names and sizes, in Python.

Read from the table that the engine is built from (``include/hvd/types.inc``), so that both say the same. Pure standard
library: the native module is not needed.

>>> from hvd_core import types
>>> types.DTYPES["float32"].bytes
4
>>> types.USER_REDUCTIONS[0].label, types.USER_REDUCTIONS[0].number
('Average', 4)
>>> types.OPERATIONS["reducescatter"].number, types.COLLECTIVES["reducescatter"].number
(5, 4)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

_ROW = re.compile(r"^HVD_(DTYPE|REDUCTION|ENGINE_REDUCTION|COLLECTIVE|OPERATION)\((.*)\)$")


class SupportsDLPack(Protocol):
    """A tensor whose memory others can use through DLPack, such as a NumPy array."""

    def __dlpack__(self, *, stream: Any = ...) -> Any: ...


@dataclass(frozen=True)
class Reduction:
    """A reduction. ``number`` is the engine's (``HVD_SUM`` of backend_abi.h; 100 for Adasum), ``user_number`` the one
    that Horovod's users see (``hvd.Sum``)."""

    name: str
    label: str
    number: int
    user_number: int


@dataclass(frozen=True)
class Dtype:
    """An element type. ``kind`` is unsigned, signed, float or bool; ``reductions`` are the names of the reductions that
    the engine carries out on it."""

    name: str
    number: int
    bytes: int
    kind: str
    reductions: tuple[str, ...]

    @property
    def reducible(self) -> bool:
        """Whether every reduction takes this type: integers, and floats of 16 bits and more. False for bool, which
        has no average."""
        return "avg" in self.reductions


@dataclass(frozen=True)
class Collective:
    """A collective, which backends carry out. ``number`` is the one of backend_abi.h."""

    name: str
    number: int
    reduces: bool
    rooted: bool


@dataclass(frozen=True)
class Operation:
    """An operation, which callers ask for. ``number`` is the one of frontend_abi.h; ``collective`` is None for join, as
    it moves no data."""

    name: str
    label: str
    number: int
    collective: Collective | None


def table_file() -> Path:
    """Path of types.inc as it was installed. Raises FileNotFoundError."""
    path = Path(__file__).resolve().parent / "include" / "hvd" / "types.inc"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; reinstall hvd-core")
    return path


def _rows() -> Iterator[tuple[str, list[str]]]:
    for number, line in enumerate(table_file().read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("HVD_"):
            continue
        match = _ROW.match(line)
        if match is None:
            raise ValueError(f"types.inc:{number}: cannot read '{line}'")
        yield match[1], match[2].split(", ")


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Row = TypeVar("_Row", bound=_Named)


def _by_name(rows: Iterable[_Row]) -> dict[str, _Row]:
    return {row.name: row for row in rows}


_TABLE = list(_rows())


def _list(macro: str) -> list[list[str]]:
    return [cells for name, cells in _TABLE if name == macro]


def _reductions(macro: str) -> dict[str, Reduction]:
    rows = [Reduction(name, label, int(number), int(user)) for _, number, name, label, user in _list(macro)]
    return _by_name(rows)


REDUCTIONS: dict[str, Reduction] = _reductions("REDUCTION")
"""The reductions of backends by name (sum, prod, min, max, avg), in the order of their numbers."""

ENGINE_REDUCTIONS: dict[str, Reduction] = _reductions("ENGINE_REDUCTION")
"""The reductions that the engine composes: adasum."""

USER_REDUCTIONS: dict[int, Reduction] = {
    r.user_number: r
    for r in sorted((*REDUCTIONS.values(), *ENGINE_REDUCTIONS.values()), key=lambda r: r.user_number)
}
"""All reductions by the number that users pass as ``op``: 0 Average, 1 Sum, 2 Adasum, 3 Min, 4 Max, 5 Product."""

_TAKEN = {
    "Every": tuple(REDUCTIONS),
    "Logical": tuple(name for name in REDUCTIONS if name != "avg"),
    "None": (),
}

DTYPES: dict[str, Dtype] = _by_name(
    [
        Dtype(name, int(number), int(size), kind.lower(), _TAKEN[reductions])
        for _, number, name, size, kind, reductions in _list("DTYPE")
    ]
)
"""The element types by name, in the order of their numbers."""

COLLECTIVES: dict[str, Collective] = _by_name(
    [
        Collective(name, int(number), effect == "Reduces", root == "Rooted")
        for _, number, name, effect, root in _list("COLLECTIVE")
    ]
)
"""The collectives by name, in the order of their numbers."""

OPERATIONS: dict[str, Operation] = _by_name(
    [
        Operation(name, label, int(number), COLLECTIVES.get(collective.lower()))
        for _, number, name, label, collective in _list("OPERATION")
    ]
)
"""The operations by name, in the order of their numbers."""

DTYPE_NAMES: tuple[str, ...] = tuple(DTYPES)
COLLECTIVE_NAMES: tuple[str, ...] = tuple(COLLECTIVES)
REDUCTION_NAMES: tuple[str, ...] = tuple(REDUCTIONS)
"""Names by number: ``DTYPE_NAMES[7]`` is float32."""

UNSERVED, NATIVE = 0, 1
"""A backend's answer to whether it serves a collective: ``HVD_UNSERVED``, ``HVD_NATIVE`` of backend_abi.h."""
