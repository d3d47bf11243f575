"""The route of host memory: one backend for all ranks, or one within hosts and one between them.

On one host the chosen backend serves everything. On several hosts, a backend that reaches across hosts either connects
all ranks ("flat"), or connects hosts while another backend works within each host ("hierarchical"). Pure functions of
the choice and of values that all ranks share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from hvd_core.backends.errors import BackendUnavailable
from hvd_core.backends.selection.backend_plan import AUTOMATIC, HostRoute, Selection, Usable
from hvd_core.types import COLLECTIVES


class OneHostOnly(BackendUnavailable):
    """The named backend cannot reach all hosts of the job. In a list it may still serve within hosts."""


def choose_host_route(
    listed: Sequence[Usable],
    source: str,
    world: Any,
    embedded: Sequence[Usable],
    installed: Callable[[], str],
    allreduce: bool | None = None,
    allgather: bool | None = None,
) -> HostRoute:
    """The route over the backends ``listed`` for host memory, in order of preference; if the list is empty, over the
    ``embedded`` ones.

    ``source``: where the list comes from. ``allreduce`` and ``allgather``: HOROVOD_HIERARCHICAL_ALLREDUCE and _ALLGATHER.
    For None (unset) the operation is hierarchical if no backend was named, or if the list names a backend that works
    within a host before a backend that reaches across hosts. ``installed``: returns the list of installed backends for
    messages.

    Raises BackendUnavailable if no backend reaches all hosts of the job.
    """
    automatic = not listed
    names = list(listed or embedded)
    if not several_hosts(world):
        chosen = Selection(names[0], source if listed else AUTOMATIC)
        return HostRoute(None, chosen) if names[0].spans_hosts else HostRoute(chosen, None)

    between = next((b for b in names if b.spans_hosts), None)
    if between is None:
        if listed:
            # The reason why a backend is kept within hosts tells more than the nature of another one.
            refused = next((b for b in names if b.kept_within), names[0])
            raise one_host_only(refused, source, world, installed(), alone=len(names) == 1)
        raise BackendUnavailable(
            f"horovod: backend selection: {spread(world)}, and no backend that may be used reaches across hosts.\n"
            f"  installed: {installed()}\n"
            "  fix: run all ranks on one host, or install a backend that works between hosts\n"
            "  list: hvd plugin list"
        )
    outer = Selection(between, AUTOMATIC if automatic else source)
    inner = [
        b for b in names[: names.index(between)] if not b.spans_hosts and not _leaves_ranks_out(b, world)
    ]
    # The order of the list, or of the automatic choice, decides whether there are two levels.
    two_levels = bool(inner)
    within = inner[0] if inner else next((b for b in embedded if not b.spans_hosts), None)
    variables = {"allreduce": allreduce, "reduce": allreduce, "allgather": allgather}
    hierarchical = tuple(c for c in COLLECTIVES if (two_levels if variables.get(c) is None else variables[c]))
    if within is None or within.name == between.name or not hierarchical:
        return HostRoute(None, outer)
    if between.launchers and not homogeneous(world):
        # With two levels, a rank whose local rank exceeds the smallest host's size takes no part between hosts. It would
        # never start the launcher's library, which starts on all ranks together.
        return HostRoute(None, outer)
    return HostRoute(Selection(within, outer.source), outer, hierarchical, within_alone=two_levels)


def _leaves_ranks_out(backend: Usable, world: Any) -> bool:
    """Whether some ranks, those that are alone on their host, would never start the launcher's library that ``backend``
    needs. It starts on all ranks together, or waits for ever."""
    return bool(backend.launchers) and 1 in Counter(world.hosts).values()


def several_hosts(world: Any) -> bool:
    """Whether the job's ranks are on more than one host. ``world`` is None for a job of one process."""
    return world is not None and len(set(world.hosts)) > 1


def homogeneous(world: Any) -> bool:
    """Whether all hosts have the same number of ranks."""
    return len(set(Counter(world.hosts).values())) == 1


def spread(world: Any) -> str:
    """``this job spans 2 hosts (alpha, beta)``."""
    names = list(dict.fromkeys(world.host_names))
    shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    return f"this job spans {len(set(world.hosts))} hosts ({shown})"


def one_host_only(backend: Usable, source: str, world: Any, installed: str, alone: bool) -> OneHostOnly:
    """The error for a named backend that does not reach across hosts. ``alone``: whether no other name was given."""
    strict = "  Not falling back, because it was named explicitly.\n" if alone else ""
    return OneHostOnly(
        f"horovod: backend '{backend.name}' (from {source}) {backend.kept_within or 'works within one host'}, "
        f"{'and' if backend.kept_within else 'but'} {spread(world)}.\n"
        f"{strict}  fix: name one that reaches across hosts, tcp for instance, or run all ranks on one host\n"
        f"  installed: {installed}"
    )


__all__ = [
    "HostRoute",
    "OneHostOnly",
    "choose_host_route",
    "homogeneous",
    "one_host_only",
    "several_hosts",
    "spread",
]
