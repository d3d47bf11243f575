"""The shape of the job, computed from each rank's leader: local and cross ranks, and the tree of links.

Pure functions of the table that all ranks share; no I/O. In the tree, the ranks of a host are children of their leader
(the lowest rank), leaders are children of other leaders with a bounded fan-out, and rank 0 is the root.
"""

from dataclasses import dataclass

FAN_OUT = 8


@dataclass(frozen=True)
class Topology:
    """``hosts``: host index of each rank, numbered by first rank. The other fields describe one rank."""

    hosts: tuple
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    leader: int
    local_ranks: tuple
    parent: int | None
    local_children: tuple
    leader_children: dict  # child leader -> world ranks reached through it


def describe(rank, leader):
    """The Topology of ``rank``; ``leader`` is the lowest rank of each rank's host."""
    leaders = sorted(set(leader))
    index = {first: i for i, first in enumerate(leaders)}
    members = {first: [] for first in leaders}
    for other, first in enumerate(leader):
        members[first].append(other)
    own = members[leader[rank]]
    local_rank = own.index(rank)
    peers = [i for i, first in enumerate(leaders) if len(members[first]) > local_rank]
    me = index[leader[rank]]
    is_leader = local_rank == 0
    parent = leader[rank] if not is_leader else (leaders[(me - 1) // FAN_OUT] if me else None)
    below = range(me * FAN_OUT + 1, min(me * FAN_OUT + FAN_OUT + 1, len(leaders))) if is_leader else ()
    return Topology(
        hosts=tuple(index[first] for first in leader),
        local_rank=local_rank,
        local_size=len(own),
        cross_rank=peers.index(me),
        cross_size=len(peers),
        leader=leader[rank],
        local_ranks=tuple(own),
        parent=parent,
        local_children=tuple(own[1:]) if is_leader else (),
        leader_children={leaders[i]: _subtree(i, leaders, members) for i in below},
    )


def _subtree(top, leaders, members):
    ranks, todo = [], [top]
    while todo:
        i = todo.pop()
        ranks += members[leaders[i]]
        todo += range(i * FAN_OUT + 1, min(i * FAN_OUT + FAN_OUT + 1, len(leaders)))
    return tuple(sorted(ranks))
