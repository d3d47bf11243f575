"""How a job's collectives on host memory go: within one host, between hosts, or over both levels.

On one host the chosen backend does everything. On several, a backend that reaches across hosts moves data between any
ranks ("flat"), or between hosts only, while another works within them ("hierarchical"). Pure functions of what was chosen
and of what all ranks share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from hvd_core.backends.errors import BackendUnavailable
from hvd_core.backends.plan import AUTOMATIC, Selection, Usable, Ways
from hvd_core.types import COLLECTIVES


class OneHostOnly(BackendUnavailable):
    """A backend was named that cannot reach all hosts of the job. In a list it may still serve within hosts."""


def host_ways(
    listed: Sequence[Usable],
    source: str,
    world: Any,
    embedded: Sequence[Usable],
    installed: Callable[[], str],
    allreduce: bool | None = None,
    allgather: bool | None = None,
) -> Ways:
    """The ways over the backends ``listed`` for host memory, in order of preference; none: over the ``embedded`` ones.

    ``allreduce`` and ``allgather`` are HOROVOD_HIERARCHICAL_ALLREDUCE and _ALLGATHER, None when unset: then everything is
    hierarchical if nothing was named, or if the list that was names a backend that works within a host before one
    that reaches across hosts. ``installed`` says what is
    installed, for messages.

    Raises BackendUnavailable when none reaches all hosts of the job.
    """
    automatic = not listed
    names = list(listed or embedded)
    if not several_hosts(world):
        chosen = Selection(names[0], source if listed else AUTOMATIC)
        return Ways(None, chosen) if names[0].spans_hosts else Ways(chosen, None)

    between = next((b for b in names if b.spans_hosts), None)
    if between is None:
        if listed:
            raise one_host_only(names[0], source, world, installed(), alone=len(names) == 1)
        raise BackendUnavailable(
            f"horovod: backend selection: {spread(world)}, and no backend that may be used reaches across hosts.\n"
            f"  installed: {installed()}\n"
            "  fix: run all ranks on one host, or install a backend that works between hosts\n"
            "  list: hvd plugin list"
        )
    outer = Selection(between, AUTOMATIC if automatic else source)
    inner = [b for b in names[: names.index(between)] if not b.spans_hosts]
    # A list, or the automatic choice, says by its order whether there are two levels.
    natural = bool(inner)
    within = inner[0] if inner else next((b for b in embedded if not b.spans_hosts), None)
    asked = {"allreduce": allreduce, "reduce": allreduce, "allgather": allgather}
    levels = tuple(c for c in COLLECTIVES if (natural if asked.get(c) is None else asked[c]))
    if within is None or within.name == between.name or not levels:
        return Ways(None, outer)
    if between.launchers and not homogeneous(world):
        # A rank beyond the smallest host's number would not take part between hosts, and never start the library of the
        # launcher, which starts on all ranks together.
        return Ways(None, outer)
    return Ways(Selection(within, outer.source), outer, levels, within_alone=natural)


def several_hosts(world: Any) -> bool:
    """Whether a job's ranks are on more than one host; ``world`` None is a job of one process."""
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
    """The error for a backend that was named and does not reach across hosts."""
    strict = "  Not falling back, because it was named explicitly.\n" if alone else ""
    return OneHostOnly(
        f"horovod: backend '{backend.name}' (from {source}) works within one host, "
        f"but {spread(world)}.\n"
        f"{strict}  fix: name one that reaches across hosts, tcp for instance, or run all ranks on one host\n"
        f"  installed: {installed}"
    )


__all__ = ["OneHostOnly", "Ways", "homogeneous", "host_ways", "one_host_only", "several_hosts", "spread"]
