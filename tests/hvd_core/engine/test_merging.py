"""Inner nodes of the tree merge what their subtree says: messages per step follow the fan-out and the number of batches,
not the number of ranks or tensors. On real control nodes, joined by queues."""

import pytest

from protocol_sim import ProtocolSim

# Rank 0 on top, leaders 1 and 2, and five ranks below each leader.
PARENTS = [-1, 0, 0, *[1] * 5, *[2] * 5]
RANKS = range(len(PARENTS))
TENSORS = 40


class Job:
    def __init__(self, **options):
        self.sim = ProtocolSim(parents=PARENTS, repeats=2, **options)
        self.events = {r: [] for r in RANKS}
        self.token = 0

    def submit(self, rank, name, **options):
        self.token += 1
        assert self.sim.submit(rank, name, 1, self.token, **options)

    def settle(self):
        """Deliver and work until nothing happens; no time passes."""
        while True:
            worked = sum(self.sim.step(r) for r in RANKS) > 0  # all of them work
            under_way = self.sim.in_flight()
            for link in under_way:
                self.sim.deliver(*link)
            for r in RANKS:
                self.events[r] += self.sim.take_events(r)
            if not worked and not under_way:
                return

    def take(self, rank):
        events, self.events[rank] = self.events[rank], []
        return events

    def step(self, order):
        for i in range(TENSORS):
            for r in order:
                self.submit(r, f"t{i}", urgent=i == TENSORS - 1)
        self.settle()
        for r in RANKS:
            ran = [name for kind, _, names, _ in self.take(r) if kind == "execute" for name in names]
            assert sorted(ran) == sorted(f"t{i}" for i in range(TENSORS))

    def sent(self):
        return [self.sim.traffic(r)[0] for r in RANKS]


@pytest.mark.parametrize(
    "order", [list(RANKS), list(RANKS)[::-1], [5, 11, 1, 3, 0, 8, 2, 4, 12, 6, 9, 7, 10]]
)
def test_a_leader_sends_as_much_as_one_rank(order):
    job = Job()
    before = job.sent()
    job.step(order)
    sent = [b - a for a, b in zip(before, job.sent())]
    # First the tensors are announced one by one: a leader says each once for its six ranks.
    assert sent[3] == TENSORS and sent[1] == sent[2] == TENSORS
    for _ in range(4):
        job.step(order)
    before = job.sent()
    for _ in range(10):
        job.step(order)
    sent = [b - a for a, b in zip(before, job.sent())]
    assert sent[0] == 0
    assert sent[1:] == [10] * (len(PARENTS) - 1)  # one ARRIVE per step from every rank, leaders included


def test_what_is_held_goes_up_after_a_bounded_time():
    job = Job(merge_ns=5_000_000)
    for r in (3, 4, 5):
        job.submit(r, "late")
    job.settle()
    assert job.sent()[1] == 0
    assert job.sim.next_deadline(1) <= 5_000_000
    job.sim.advance(5_000_000)
    job.settle()
    assert job.sent()[1] == 1  # the three together
    for r in set(RANKS) - {3, 4, 5}:
        job.submit(r, "late", urgent=True)
    job.settle()
    assert all(any(e[0] == "execute" for e in job.take(r)) for r in RANKS)


def test_who_waits_makes_the_held_message_urgent():
    job = Job()
    for r in RANKS:
        job.submit(r, "w") if r != 7 else None
    job.sim.wanted(3, "w")
    job.settle()
    before = job.sent()[1]
    job.submit(7, "w")
    job.settle()
    assert job.sent()[1] == before + 1
    # No rank need wait until the coalescing delay is over.
    assert all(any(e[0] == "execute" for e in job.take(r)) for r in RANKS)


def test_only_members_are_waited_for():
    job = Job()
    for r in RANKS:
        assert job.sim.add_set(r, [3, 4, 8], r + 1)
    job.settle()
    assert all(job.take(r) == [("set_added", 1, [3, 4, 8], r + 1)] for r in RANKS)
    before = job.sent()
    for r in (3, 4, 8):
        job.submit(r, "m", set=1, urgent=True)
    job.settle()
    sent = [b - a for a, b in zip(before, job.sent())]
    assert (sent[1], sent[2]) == (1, 1)
    assert [r for r in RANKS if any(e[0] == "execute" for e in job.take(r))] == [3, 4, 8]


def test_a_disagreement_below_one_leader_is_heard_everywhere():
    job = Job()
    for r in RANKS:
        job.token += 1
        job.sim.submit(r, "x", 2 if r == 4 else 1, job.token)
    job.sim.advance(5_000_000)  # who disagrees last waits for the rest of the subtree no longer
    job.settle()
    job.sim.advance(5_000_000)
    job.settle()
    for r in RANKS:
        ((kind, _, text),) = job.take(r)
        assert kind == "fail" and "rank 4" in text and "ranks 0-3, 5-12" in text
