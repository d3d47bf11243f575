"""Which rank each task of a Spark job runs, and which devices the rank sees. Pure functions, equal on all tasks.

The ranks of a host are consecutive, and the host of task 0 comes first, as with the original's `horovod.spark.run`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from horovod._runner.hosts import HostInfo, SlotInfo, get_host_assignments


@dataclass(frozen=True)
class TaskFacts:
    """One task, as it describes itself to the others. `space`: differs between containers of one host. `devices`: the
    addresses of the GPUs that Spark has given to the task."""

    host: str
    space: str
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """The rank of one task. `devices`: what its process sees; None if Spark has given it none. `own_devices`: those of
    its task alone."""

    slot: SlotInfo
    devices: tuple[str, ...] | None
    own_devices: tuple[str, ...] = ()


def assign(tasks: Sequence[TaskFacts]) -> list[Place]:
    """The place of each task, in the order of the tasks."""
    groups: dict[tuple[str, str], list[int]] = {}
    for number, facts in enumerate(tasks):
        groups.setdefault((facts.host, facts.space), []).append(number)
    hosts = [HostInfo(host, len(members)) for (host, _), members in groups.items()]
    slots = iter(get_host_assignments(hosts, len(tasks)))
    places: dict[int, Place] = {}
    for members in groups.values():
        devices = _devices([tasks[number].devices for number in members])
        for number in members:
            places[number] = Place(next(slots), devices, tasks[number].devices)
    return [places[number] for number in range(len(tasks))]


def _devices(given: Sequence[tuple[str, ...]]) -> tuple[str, ...] | None:
    """The devices that all ranks of a host see. Programs choose one by their local rank, so that the first device of
    local rank n is at place n; further ones come after these."""
    if not all(given):
        return None
    firsts = [devices[0] for devices in given]
    return tuple(firsts + [device for devices in given for device in devices[1:]])
