"""Known batches and process sets that come and go for as long as a job runs: they work on, and take no more memory."""

from harness.heap import bytes_in_use
from protocol_sim import ProtocolSim

PARENTS = [-1, 0, 0, 1]  # rank 1 is an inner node of the tree


def settle(sim):
    for _ in range(40):
        worked = [sim.step(r) for r in range(len(PARENTS))]
        links = sim.in_flight()
        for link in links:
            sim.deliver(*link)
        for r in range(len(PARENTS)):
            sim.take_events(r)
        if not links and not any(worked):
            return
    raise AssertionError("the nodes find no rest")


def epoch(sim, names):
    """Two steps, so that `names` become a known batch, and a join, which ends it."""
    for _ in range(2):
        sim.submit_everywhere(names, 1)
        sim.settle(len(names))
    for r in range(len(PARENTS)):
        sim.join(r)
    sim.settle(0)
    for r in range(len(PARENTS)):
        sim.take_events(r)


def messages_of_a_step(sim, names):
    before = sim.traffic(3)[0]
    sim.submit_everywhere(names, 1)
    sim.settle(len(names))
    return sim.traffic(3)[0] - before


def test_numbers_of_known_batches_are_used_again():
    sim = ProtocolSim(PARENTS, repeats=1)
    for k in range(500):
        epoch(sim, [f"a{k % 3}", "b"])
    before = bytes_in_use()
    for k in range(9000):
        epoch(sim, [f"a{k % 3}", "b"])
    assert bytes_in_use() - before < 100_000
    for _ in range(2):
        messages_of_a_step(sim, ["a", "b"])
    assert messages_of_a_step(sim, ["a", "b"]) == 1, "no batch becomes known any more"


def test_process_sets_that_have_ended_take_no_memory():
    sim = ProtocolSim(PARENTS)
    number = 0

    def come_and_go():
        nonlocal number
        number += 1
        for r in range(len(PARENTS)):
            sim.add_set(r, [0, 2, 3], 1)
        settle(sim)
        for r in (0, 2, 3):
            assert sim.submit(r, "a", 1, 2, urgent=True, set=number)
        settle(sim)
        for r in range(len(PARENTS)):
            sim.remove_set(r, number, 3)
        settle(sim)

    for _ in range(1100):  # by then the links know as many signatures as they keep
        come_and_go()
    before = bytes_in_use()
    for _ in range(1000):
        come_and_go()
    assert bytes_in_use() - before < 100_000
