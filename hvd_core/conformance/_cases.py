"""The list of cases, and the Kit, which is the argument of a case.

A case is a function of one argument, run on every rank at the same time. It returns if it passes, raises Failed (or
BackendFailure) or Skip otherwise, and may add rows to the report. Cases are added with the decorator, a vendor's own
ones included (``--cases MODULE``, or ``CommonCases.extra``).
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from hvd_core.conformance import _abi
from hvd_core.conformance._abi import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCE, REDUCESCATTER, SUM
from hvd_core.conformance._backend import Backend, deadline
from hvd_core.conformance._comm import Comm, DeviceSpace, HostSpace, Pending, Region, Space
from hvd_core.conformance._numerics import NUMBERS, compare, reduced, sample, stored
from hvd_core.conformance._verdicts import CaseArgument, Composed, Failed, Row, Skip

LEVELS = {
    "L0": "lint",
    "L1": "device",
    "L2": "collectives",
    "L3": "ordering",
    "L4": "failure",
    "L5": "sanity",
}


CaseFunction = Callable[[Any], None]
"""Its argument is the Kit; for a case without ranks a Bare."""


@dataclass(frozen=True)
class Case:
    """One case. ``name``: the stable id. ``says``: one line for reports. ``ranks``: the least number of ranks; 0: the
    case runs in a process without ranks. ``kills``: the case kills ranks, so the next case gets new ones. ``fresh``: the
    process must not have loaded the backend. ``seconds``: the case's deadline.
    """

    name: str
    says: str
    run: CaseFunction
    ranks: int = 1
    kills: bool = False
    fresh: bool = False
    seconds: float = 60.0

    @property
    def level(self) -> str:
        """``L2``."""
        return self.name.split(".")[0]


_CASES: dict[str, Case] = {}
_PARTS = (
    "_l0_tables",
    "_l1_devices",
    "_l2_collectives",
    "_l2_rules",
    "_l3_ordering",
    "_l4_failures",
    "_l5_sanity",
)


def case(name: str, says: str, **traits: Any) -> Callable[[CaseFunction], CaseFunction]:
    """Make a function of one argument a case.

    Args:
        name: its id, such as "L2.allreduce". Cases of other levels than L0 to L5 are the vendor's own.
        says: one line for reports.
        traits: further fields of ``Case``.

    Raises:
        ValueError: the name is taken.

    Example:
        @case("X.sum", "an allreduce of ones gives the number of ranks", ranks=2)
        def adds_up(kit):
            ...
    """

    def add(function: CaseFunction) -> CaseFunction:
        known = _CASES.get(name)
        if known is not None and known.run.__qualname__ != function.__qualname__:
            raise ValueError(f"horovod: conformance case '{name}' exists already")
        _CASES[name] = Case(name, says, function, **traits)
        return function

    return add


def all_cases(modules: Iterable[str] = ()) -> list[Case]:
    """Every case in the order of levels; ``modules`` are imported first and bring their own."""
    for part in _PARTS:
        importlib.import_module(f"hvd_core.conformance.{part}")
    for module in modules:
        importlib.import_module(module)
    return sorted(_CASES.values(), key=_place)


def _place(case: Case) -> tuple[str, int]:
    part = case.run.__module__.rpartition(".")[2]
    return case.level if case.level in LEVELS else "M", _PARTS.index(part) if part in _PARTS else len(_PARTS)


class Kit(CaseArgument):
    """The argument of a case: the backend, this rank's number, memory, communicators, and functions to reach other
    ranks."""

    def __init__(self, config: dict[str, Any], backend: Backend, store: Any) -> None:
        self.config, self.backend, self._store = config, backend, store
        self.rank, self.size, self.hosts = config["rank"], config["size"], config["hosts"]
        self.quick: bool = config.get("quick", False)
        self.patience: float = config.get("patience", 1.0)
        self.rows: list[Row] = []
        self._case, self._turn = "", 0
        self._made: list[Comm] = []
        self._host_space = HostSpace()
        self._device_space: DeviceSpace | None = None

    def begin(self, case_name: str, serial: int) -> None:
        """Starts a case. ``serial``: a number that is equal on all ranks and never used twice."""
        self.rows, self._case, self._turn = [], f"{case_name}#{serial}", 0

    def end(self) -> None:
        """Destroys the communicators of the case. Raises BackendFailure."""
        made, self._made = self._made, []
        for comm in made:
            comm.destroy()

    # ------------------------------------------------------------------------------------------------ others

    def share(self, value: Any) -> list[Any]:
        """The values that all ranks pass, in rank order. Values are JSON. Waits for all ranks."""
        self._turn += 1
        key = f"kit/{self._case}/{self._turn}"
        if self.size == 1:
            return [json.loads(json.dumps(value))]
        self._store.set(f"{key}/{self.rank}", json.dumps(value).encode())
        return [json.loads(self._store.get(f"{key}/{r}", self.limit(30))) for r in range(self.size)]

    def meet(self) -> None:
        """Returns when every rank has called it."""
        self.share(None)

    def tell(self, name: str) -> None:
        """Makes hear(name) return on all ranks."""
        self._store.set(f"kit/{self._case}/told/{name}", b"1")

    def hear(self, name: str, seconds: float = 20.0) -> bool:
        """Waits for tell(name) of any rank; returns whether it came in time."""
        try:
            self._store.get(f"kit/{self._case}/told/{name}", self.limit(seconds))
            return True
        except TimeoutError:
            return False

    def limit(self, seconds: float) -> float:
        """A timeout in seconds, multiplied by --patience for slow machines."""
        return seconds * self.patience

    # ---------------------------------------------------------------------------------- memory, communicators

    def need_comm(self) -> None:
        """Skips the case if the backend has no communicator table."""
        if self.backend.comm is None:
            raise Skip("the backend has no communicator table; hvd-core moves its memory over other backends")

    def need_device(self, *slots: str) -> DeviceSpace:
        """The open device. Skips the case if the backend has no device table or lacks one of the slots."""
        if self.backend.device is None:
            raise Skip("the backend has no device table")
        for slot in slots:
            if not self.backend.has("device", slot):
                raise Skip(f"the device table has no {slot}; hvd-core works without it")
        return self.device_space()

    def device_space(self) -> DeviceSpace:
        """Memory of this rank's device, whose ordinal is the local rank modulo the number of devices."""
        if self._device_space is None:
            local = sum(1 for r in range(self.rank) if self.hosts[r] == self.hosts[self.rank])
            self._device_space = DeviceSpace(self.backend, local)
        return self._device_space

    def spaces(self) -> list[Space]:
        """The kinds of memory that the communicator reads and the kit can allocate."""
        self.need_comm()
        caps = self.backend.caps
        found: list[Space] = []
        if caps & _abi.CAP_MEM_HOST:
            found.append(self._host_space)
        if caps & _abi.CAP_MEM_DEVICE:
            types = (self.backend.comm_api.device_types or b"").decode().split(",")
            own = self.backend.device.device_type.decode() if self.backend.device else None
            if own in types:
                found.append(self.device_space())
            elif not found:
                raise Skip(f"it reads memory of {', '.join(types)}, but has no device table to allocate it")
            else:
                self.note(
                    "device memory", f"not tried: no device table here makes memory of {', '.join(types)}"
                )
        return found

    @overload
    def comm(
        self,
        space: Space,
        members: None = None,
        seconds: float = 20.0,
        tag: str = "",
        parent: Comm | None = None,
    ) -> Comm: ...

    @overload
    def comm(
        self,
        space: Space,
        members: Sequence[int],
        seconds: float = 20.0,
        tag: str = "",
        parent: Comm | None = None,
    ) -> Comm | None: ...

    def comm(
        self,
        space: Space,
        members: Sequence[int] | None = None,
        seconds: float = 20.0,
        tag: str = "",
        parent: Comm | None = None,
    ) -> Comm | None:
        """A new communicator of ``members`` (default: all ranks); None on a rank that is not a member. With ``parent``:
        made by its ``split``, which all its ranks must call.

        All ranks call this, in the same order. Destroyed at the end of the case. Raises BackendFailure.
        """
        self._turn += 1
        members = list(range(self.size)) if members is None else list(members)
        prefix = f"comm/{self._case}/{self._turn}{tag}"
        if self.rank not in members:
            if parent is not None:
                parent.decline_split(prefix, deadline(self.limit(seconds)))
            return None
        made = Comm(
            self.backend,
            space,
            prefix,
            members,
            self.rank,
            self.hosts,
            deadline(self.limit(seconds)),
            parent,
        )
        self._made.append(made)
        return made

    def forget(self, comm: Comm) -> None:
        """Leaves it to the case to destroy this communicator."""
        self._made.remove(comm)

    @staticmethod
    def pause(seconds: float) -> None:
        """Sleeps."""
        time.sleep(seconds)


# ---- operations that cases of all levels start ------------------------------------------------------------


def served(kit: Kit, coll: int, dtype: str, op: int = SUM, varying: bool = False) -> _abi.CollCaps | None:
    """The answer of query; None if the collective is not served."""
    caps = kit.backend.query(coll, NUMBERS[dtype], op, kit.size, varying)
    return caps if caps.support else None


def alignment_of(kit: Kit, coll: int, dtype: str) -> int:
    """The alignment of the buffers of a collective that is served."""
    caps = served(kit, coll, dtype)
    assert caps is not None
    return int(caps.alignment)


def plain_type(kit: Kit) -> tuple[str, int]:
    """(type, alignment) of an allreduce sum that the backend has."""
    kit.need_comm()
    for dtype in ("float32", "int32", "float16", "uint8"):
        caps = served(kit, ALLREDUCE, dtype)
        if caps is not None:
            return dtype, caps.alignment
    raise Composed("allreduce sum is declared for none of float32, int32, float16, uint8")


def at_most(kit: Kit, dtype: str, count: int) -> int:
    """The count, or as much of it as one call of an allreduce sum may have."""
    caps = served(kit, ALLREDUCE, dtype)
    return min(count, caps.max_count) if caps is not None and caps.max_count else count


class Operation:
    """One collective on known data, ready to be started, and its right result.

    Args:
        comm: the communicator.
        coll: the collective.
        dtype: the name of the type.
        inputs: the input of each rank.
        op, root: of the call.
        alignment: of the buffers.
        parts: how many elements each rank gets (REDUCESCATTER), or each rank from each other one (ALLTOALL: parts[i][j]
            from rank i to rank j).
        varying: pass the lists of counts.
        buffer: memory that is used as input and output; None for new memory.
        in_place: one new buffer as input and output.
    """

    def __init__(
        self, comm: Comm, coll: int, dtype: str, inputs: Sequence[np.ndarray], *, op: int = SUM, root: int = 0,
        alignment: int = 1, parts: Sequence[Any] = (), varying: bool = False, buffer: Region | None = None,
        in_place: bool = False,
    ) -> None:  # fmt: skip
        self.comm, self.coll, self.dtype, self.inputs = comm, coll, dtype, inputs
        self.op, self.root, self.parts, self.varying = op, root, parts, varying
        mine, before = inputs[comm.rank], sum(n.size for n in inputs[: comm.rank])
        self.count = mine.size
        size = mine.size
        if coll == ALLGATHER:
            size = sum(one.size for one in inputs)
        elif coll == REDUCESCATTER:
            size = parts[comm.rank]
        elif coll == ALLTOALL:
            size = sum(row[comm.rank] for row in parts)
        if in_place or buffer is not None:
            whole = np.zeros(size, mine.dtype)
            at = before if coll == ALLGATHER else 0
            whole[at : at + mine.size] = mine
            self.out = self.source = buffer or comm.space.region(whole.nbytes, alignment)
            self.source.write(whole)
        else:
            self.source = comm.space.of(mine, alignment)
            self.out = comm.space.region(size * mine.itemsize, alignment)
            self.out.poison()

    def arguments(self) -> dict[str, Any]:
        """The arguments of Comm.enqueue."""
        lists: dict[str, Any] = {}
        if self.varying and self.coll == ALLTOALL:
            rank = self.comm.rank
            lists = {"in_counts": self.parts[rank], "out_counts": [row[rank] for row in self.parts]}
        elif self.varying:
            lists = {"out_counts": self.parts or [one.size for one in self.inputs]}
        return {
            **{"coll": self.coll, "dtype": NUMBERS[self.dtype], "op": self.op, "root": self.root},
            **{"ins": [self.source], "outs": [self.out], "counts": [self.count], **lists},
        }

    def start(self, **more: Any) -> Pending:
        """The pending operation."""
        return self.comm.start(**self.arguments(), **more)

    def complete(self, **more: Any) -> np.ndarray:
        """Starts and completes it; the output."""
        self.start(**more).wait()
        return self.out.read(stored(self.dtype))

    def check(self, how: str = "wait", **more: Any) -> str:
        """Starts and completes it; "" when the result is right."""
        self.start(**more).wait(how)
        return self.wrong()

    def verify(self, where: str = "", how: str = "wait", **more: Any) -> None:
        """Starts and completes it. Raises Failed when the result is wrong."""
        self.start(**more).wait(how)
        self.expect_right(where)

    def wrong(self) -> str:
        """ "" when the result is right."""
        got, expected = self.out.read(stored(self.dtype)), self.expected()
        return "" if expected is None else compare(self.dtype, got, *expected)

    def expect_right(self, where: str = "") -> None:
        """Raises Failed when the result is wrong."""
        if wrong := self.wrong():
            raise Failed(f"{where}: {wrong}" if where else wrong)

    def expected(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        """The right result and the allowed error, as compare() takes them; None for any."""
        rank = self.comm.rank
        if self.coll == BROADCAST:
            return self.inputs[self.root], None
        if self.coll == ALLGATHER:
            return np.concatenate(self.inputs), None
        if self.coll == ALLTOALL:
            starts = [sum(row[:rank]) for row in self.parts]
            pieces = zip(self.inputs, starts, self.parts)
            return np.concatenate([one[at : at + row[rank]] for one, at, row in pieces]), None
        if self.coll == REDUCE and rank != self.root:
            return None
        at, end = 0, None
        if self.coll == REDUCESCATTER:
            at, end = sum(self.parts[:rank]), sum(self.parts[: rank + 1])
        return reduced(self.dtype, self.op, [one[at:end] for one in self.inputs])


class Sum(Operation):
    """An allreduce sum of ``count`` elements, ready to be started."""

    def __init__(self, kit: Kit, comm: Comm, count: int, salt: int = 0) -> None:
        dtype, alignment = plain_type(kit)
        count = at_most(kit, dtype, count)
        inputs = [sample(dtype, r, count, salt) for r in range(comm.size)]
        super().__init__(comm, ALLREDUCE, dtype, inputs, alignment=alignment)
