"""How a job's collectives go over the chosen backends: within one host, between hosts, or over both levels.

On one host the chosen backend does everything. On several, a backend that reaches across hosts moves data between any
ranks ("flat"), or between hosts only, while another works within them ("hierarchical"). Pure functions of the environment
and of what all ranks share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hvd_core.backends.registry import InstalledBackend, installed
from hvd_core.backends.selection import Selection, listed_names, select, select_automatic, with_names

# The backend interface's numbers.
COLLECTIVES = {
    "allreduce": 0,
    "reduce": 1,
    "broadcast": 2,
    "allgather": 3,
    "reducescatter": 4,
    "alltoall": 5,
    "send": 6,
    "recv": 7,
    "barrier": 8,
}


@dataclass(frozen=True)
class Ways:
    """``within``: the backend within hosts, None where ``between`` does everything. ``between``: the backend for any
    ranks, None in a job on one host. ``hierarchical``: the collectives that use both on several hosts. ``within_alone``:
    whether a process set on one host uses ``within``.
    """

    within: Selection | None
    between: Selection | None
    hierarchical: tuple[str, ...] = ()
    within_alone: bool = True

    @property
    def source(self) -> str:
        """Who chose."""
        return (self.between or self.within).source

    def describe(self) -> str:
        """``shm``, ``tcp``, or ``shm within hosts, tcp between them (flat: allgather)``."""
        if self.between is None or self.within is None:
            return (self.between or self.within).name
        flat = [c for c in ("allreduce", "allgather", "broadcast", "alltoall") if c not in self.hierarchical]
        text = f"{self.within.name} within hosts, {self.between.name} between them"
        return text + (f" (flat: {', '.join(flat)})" if flat else "")


def choose_ways(
    environ: Mapping[str, str],
    world: Any = None,
    argument: str | type | Sequence[str | type] | None = None,
    allreduce: bool | None = None,
    allgather: bool | None = None,
    available: tuple[InstalledBackend, ...] | None = None,
) -> Ways:
    """Choose the backends for host memory and which collectives go over two levels.

    ``allreduce`` and ``allgather`` are HOROVOD_HIERARCHICAL_ALLREDUCE and _ALLGATHER, None when unset: then everything is
    hierarchical if nothing was named, or if the list that was names a backend that works within a host before one
    that reaches across hosts. Other arguments and errors are those of selection.select().
    """
    argument = with_names(argument)
    backends = installed() if available is None else available
    spans = {b.name: b.spans_hosts for b in backends}
    several = world is not None and len(set(world.hosts)) > 1
    if not several:
        chosen = select(environ, world, argument, backends)
        return Ways(None, chosen) if spans[chosen.name] else Ways(chosen, None)

    between = select(environ, world, argument, backends)
    names = listed_names(environ, argument)
    inner = [name for name in names[: names.index(between.name)] if spans.get(name) is False] if names else []
    if between.source == "automatic":
        within, natural = select_automatic(None, backends), True
    elif inner:
        within, natural = select({"HOROVOD_BACKEND": inner[0]}, None, None, backends), True
    else:
        within, natural = select_automatic(None, backends), False
    asked = {"allreduce": allreduce, "reduce": allreduce, "allgather": allgather}
    levels = tuple(c for c in COLLECTIVES if (natural if asked.get(c) is None else asked[c]))
    if within.name == between.name or not levels:
        return Ways(None, between)
    return Ways(within, between, levels, within_alone=natural)
