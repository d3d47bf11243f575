"""Which workers of an elastic job have a slot, and where new ones may start. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from horovod._runner.elastic_membership import Membership


def with_slots(membership: Membership, hosts: Mapping[str, int], going: Collection[int]) -> list[int]:
    """A host's oldest workers keep their slots, members before spares. `hosts`: {host: slots}; `going`: workers that are
    about to end."""
    members, kept = set(membership.members), []
    for host, slots in hosts.items():
        here = [w for w in membership.alive() if w.host == host and not w.leaving and w.number not in going]
        here.sort(key=lambda worker: (worker.number not in members, worker.number))
        kept += [worker.number for worker in here[:slots]]
    return kept


def free_slots(
    membership: Membership,
    hosts: Mapping[str, int],
    most: int | None,
    usable_at: Callable[[str, bool], float | None],
    now: float,
) -> Iterator[str]:
    """A host for each worker that may start now. `most`: workers in all, None for as many as there are slots;
    `usable_at`: see Cooldown."""
    used: dict[str, int] = {}
    count = 0
    for worker in membership.alive():
        if not worker.leaving:
            used[worker.host] = used.get(worker.host, 0) + 1
            count += worker.wanted
    most = sum(hosts.values()) if most is None else most
    for host, slots in hosts.items():
        usable = usable_at(host, len(hosts) == 1)
        if usable is None or now < usable:
            continue
        for _ in range(min(slots - used.get(host, 0), most - count)):
            count += 1
            yield host
