"""Spoiled control messages: a node that reads them aborts the job in good order, or does not mind; it never crashes.

The bytes come from real exchanges between nodes, with some of them changed, cut, repeated or invented.
"""

import random
import resource

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


def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def message(*parts):
    body = b"".join(varint(p) if isinstance(p, int) else p for p in parts)
    return len(body).to_bytes(4, "little") + body


HUGE = 2**32 - 1
RANK_1 = (1, 1, 1)  # one run: skip one rank, one rank
SIG = bytes(64)
DOWN = {
    "a new set far away": message(6, HUGE, 1, 1),
    "the end of a set that never was": message(7, HUGE),
    "a failure in a set that never was": message(3, HUGE, 1, b"x", 1, b"t", 0),
    "a batch of a set that never was": message(0, HUGE, 0, 0),
    "a known batch far away": message(0, 0, HUGE, 0),
    "a run of a batch that never was": message(1, HUGE, 0),
    "a name in a far slot of the dictionary": message(0, 0, 0, 1, 1, 2**24, 1, b"x", 0, 0),
}
UP = {
    "ranks far away": message(0, 1, 2**30, 1, 0, 0),
    "ranks without end": message(5, 1, 0, 2**40),
    "ranks that wrap around": message(5, 2, 1, 1, 2**64 - 2, 2**20),
    "a set that never was": message(1, *RANK_1, HUGE, 1, b"x", 1, b"t"),
    "an arrival at a batch that never was": message(2, *RANK_1, HUGE, 0),
    "a name in a far slot of the dictionary": message(6, *RANK_1, 0, 1, 2**24, 1, b"x"),
}


@pytest.mark.parametrize(("upwards", "what"), [*((False, w) for w in DOWN), *((True, w) for w in UP)])
def test_numbers_from_the_wire_make_no_room(upwards, what):
    """No number in a message is taken for a size or a place to make room for: the node aborts, and stays small."""
    sim = ProtocolSim([-1, 0])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sim.inject(1, upwards, (UP if upwards else DOWN)[what])
    rank = 0 if upwards else 1
    sim.step(rank)
    assert [e[0] for e in sim.take_events(rank)] == ["aborted"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10  # KiB


@pytest.mark.parametrize(
    "generation", range(4)
)  # those that have run, the one that may run next, one to come
def test_who_is_not_in_a_set_does_not_arrive_for_it(generation):
    sim = ProtocolSim([-1, 0, 0, 0], repeats=1)

    def settle():
        for _ in range(6):
            for r in range(4):
                sim.step(r)
            for link in sim.in_flight():
                sim.deliver(*link)

    for r in range(4):
        sim.add_set(r, [0, 1], 1)
    settle()
    for _ in range(4):
        for r in (0, 1):
            for name in ("a", "b"):
                sim.submit(r, name, 1, 1, urgent=False, set=1)
        sim.advance(2_000_000)
        settle()
    for name in ("a", "b"):
        sim.submit(0, name, 1, 1, set=1)
    sim.step(0)
    sim.take_events(0)
    sim.inject(2, True, message(2, 1, 2, 1, 0, generation))
    sim.step(0)
    events = sim.take_events(0)
    assert [e[0] for e in events] == ["aborted"] and "outside the process set" in events[0][1]
