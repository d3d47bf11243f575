"""Spoiled control messages: a node that reads them aborts the job in good order, or does not mind; it never crashes.

The bytes come from real exchanges between nodes, with some of them changed, cut, repeated or invented.
"""

import random

import pytest

from hvd_core._core import ProtocolSim


def spoil(rng, piece):
    data = bytearray(piece)
    kind = rng.randrange(5)
    if kind == 0 and data:
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif kind == 1:
        del data[rng.randrange(len(data) + 1) :]
    elif kind == 2:
        at = rng.randrange(len(data) + 1)
        data[at:at] = rng.randbytes(rng.randint(1, 12))
    elif kind == 3:
        data += bytes(data)
    else:
        # A well-formed frame of nonsense.
        body = rng.randbytes(rng.randint(0, 40))
        data += len(body).to_bytes(4, "little") + body
    return bytes(data)


@pytest.mark.parametrize("seed", range(8))
def test_spoiled_bytes(seed):
    rng = random.Random(seed)
    aborted = 0
    for _ in range(150):
        sim = ProtocolSim(rng.choice([[-1, 0, 0], [-1, 0, 1]]), cache_capacity=rng.choice([0, 2, 64]))
        for step in range(60):
            rank = rng.randrange(3)
            action = rng.randrange(8)
            if action < 3:
                sim.submit(
                    rank, f"t{rng.randrange(4)}", rng.randrange(1, 3), step + 1, bool(rng.randrange(4))
                )
            elif action == 3:
                sim.poison(rank, f"t{rng.randrange(4)}", "bad")
            elif action == 4:
                sim.wanted(rank, f"t{rng.randrange(4)}")
            sim.advance(rng.choice([0, 1000, 2_000_000]))
            sim.step(rank)
            for r, upwards in sim.in_flight():
                if rng.random() < 0.05:
                    sim.inject(r, upwards, spoil(rng, bytes(sim.intercept(r, upwards))))
                elif rng.random() < 0.7:
                    sim.deliver(r, upwards)
        for _ in range(20):
            for rank in range(3):
                sim.step(rank)
            for r, upwards in sim.in_flight():
                sim.deliver(r, upwards)
        events = [sim.take_events(rank) for rank in range(3)]
        causes = [e[1] for rank_events in events for e in rank_events if e[0] == "aborted"]
        aborted += bool(causes)
        for rank_events in events:
            assert sum(e[0] == "aborted" for e in rank_events) <= 1
    assert aborted > 20  # the test really does spoil things
