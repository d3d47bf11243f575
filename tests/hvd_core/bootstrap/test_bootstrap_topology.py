"""The tree for many shapes of jobs, as pure arithmetic."""

import random

import pytest

from hvd_core._bootstrap.hosts import FAN_OUT, topology_of


def shapes():
    yield [0]
    yield [0] * 5
    yield list(range(200))
    yield [rank // 4 * 4 for rank in range(64)]
    yield [0, 1, 0, 1, 4, 0]
    for seed in range(20):
        chance = random.Random(seed)
        home, leader = [chance.randrange(12) for _ in range(chance.randrange(1, 60))], []
        leader = [home.index(host) for host in home]
        yield leader


@pytest.mark.parametrize("leader", list(shapes()), ids=len)
def test_tree_reaches_every_rank_once(leader):
    size = len(leader)
    shape = [topology_of(rank, leader) for rank in range(size)]
    for rank, own in enumerate(shape):
        assert own.hosts[0] == 0 and own.local_ranks[own.local_rank] == rank
        assert own.local_size == leader.count(leader[rank])
        assert (own.parent is None) == (rank == 0)
        assert len(own.leader_children) <= FAN_OUT
        below = [rank]
        for child in own.local_children:
            assert shape[child].parent == rank
            below.append(child)
        for child, subtree in own.leader_children.items():
            assert shape[child].parent == rank and child in subtree
            below += subtree
        assert len(set(below)) == len(below)
        if rank == 0:
            assert sorted(below) == list(range(size))


@pytest.mark.parametrize("leader", list(shapes()), ids=len)
def test_cross_ranks_count_the_hosts_that_have_this_local_rank(leader):
    size = len(leader)
    shape = [topology_of(rank, leader) for rank in range(size)]
    for local_rank in {own.local_rank for own in shape}:
        peers = [own for own in shape if own.local_rank == local_rank]
        assert sorted(own.cross_rank for own in peers) == list(range(len(peers)))
        assert all(own.cross_size == len(peers) for own in peers)


def test_hosts_are_numbered_by_their_first_rank():
    assert topology_of(3, [0, 1, 0, 1, 4]).hosts == (0, 1, 0, 1, 2)
