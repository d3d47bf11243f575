"""Spoiled control messages: a node that reads them aborts the job in good order, or does not mind; it never crashes.

The bytes come from real exchanges between nodes, with some of them changed, cut, repeated or invented.
"""

import random
import resource
import struct

import pytest

from protocol_sim import ProtocolSim


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


def signed(value):
    return varint((value << 1) ^ (value >> 63) if value >= 0 else ((-value) << 1) - 1)


def text(value):
    return len(value), value.encode()


def request(name, kind=0, tensors=((7, (1,)),), reduce_op=0, root=-1):
    """A name and a signature, as ProtocolSim's submit(rank, name, 1, ...) announces them."""
    body = [kind, 1, signed(reduce_op), signed(root), struct.pack("<dd", 1.0, 1.0), *text("cpu"), 0]
    if kind == ADD_SET:
        body += [0]
    body += [len(tensors)]
    for dtype, shape in tensors:
        body += [signed(dtype), len(shape), *map(signed, shape)]
    raw = b"".join(varint(p) if isinstance(p, int) else p for p in body)
    return (0, *text(name), 0, len(raw), raw)


def execute(*requests):
    return message(0, 0, 0, len(requests), *(part for r in requests for part in r))


def add_set(number, members, name=""):
    return message(6, number, len(members), *members, *text(name))


ALLREDUCE, ALLGATHER, BROADCAST, REDUCESCATTER, ADD_SET, WINDOW, SEND = 0, 1, 2, 4, 8, 10, 11


def cause_after(entry, submitted=("x",)):
    """The cause with which rank 1 ends the job when the root's log has this entry; None if it does not."""
    sim = ProtocolSim([-1, 0])
    for token, name in enumerate(submitted, 1):
        sim.submit(1, name, 1, token)
    sim.step(1)
    sim.inject(1, False, entry)
    sim.step(1)
    causes = [e[1] for e in sim.take_events(1) if e[0] == "aborted"]
    return causes[0] if causes else None


def test_the_log_can_execute_only_what_this_rank_has_submitted():
    assert cause_after(execute(request("x"))) is None
    assert cause_after(execute(request("x"), request("y")), ("x", "y")) is None
    other_type = cause_after(execute(request("x", tensors=((8, (1,)),))))
    assert other_type.startswith("rank 1: rank 0: ") and "float64" in other_type and "float32" in other_type
    assert "[2]" in cause_after(execute(request("x", tensors=((7, (2,)),))))
    assert "3 tensors" in cause_after(execute(request("x", tensors=((8, (1,)),) * 3)))
    assert "allgather" in cause_after(execute(request("x", kind=ALLGATHER, tensors=((7, (-1,)),))))
    assert "root" in cause_after(execute(request("x", root=1)))


ABSURD = {
    "an empty batch": execute(),
    "requests of different kinds in one batch": execute(request("x"), request("y", tensors=((4, (1,)),))),
    "an element type that does not exist": execute(request("x", tensors=((99, (1,)),))),
    "a negative size": execute(request("x", tensors=((7, (-4,)),))),
    "more elements than there is memory": execute(request("x", tensors=((7, (1 << 40, 1 << 40)),))),
    "an allgather of a scalar": execute(request("x", kind=ALLGATHER, tensors=((7, ()),))),
    "a reducescatter of a scalar": execute(request("x", kind=REDUCESCATTER, tensors=((7, ()),))),
    "a broadcast of nobody": execute(request("x", kind=BROADCAST, root=7)),
    "a window without a tensor": execute(request("x", kind=WINDOW, tensors=())),
    "a change of the process sets as a batch": execute(request("x", kind=ADD_SET, tensors=())),
    "a set of nobody": add_set(1, []),
    "a set out of order": add_set(1, [1, 0]),
    "a rank twice in a set": add_set(1, [0, 0]),
    "a rank of another job in a set": add_set(1, [0, 2]),
    "a pair of one rank": add_set(1, [0], "#set/0/#pair"),
    "a set of others than have asked": add_set(1, [0, 1], "#set/0/x"),
    "the end of the set of all ranks": message(7, 0, 0),
    "the end of a join that nobody has asked for": message(4, 0),
    "a rank beyond 32 bits": message(5, (1 << 32) + 1, 1, b"x"),
}


@pytest.mark.parametrize("what", ABSURD)
def test_an_absurd_entry_ends_the_job_and_names_the_root(what):
    cause = cause_after(ABSURD[what], ("x", "y"))
    assert cause and cause.startswith("rank 1: rank 0: "), cause


def test_a_set_is_the_one_that_was_asked_for():
    sim = ProtocolSim([-1, 0, 0])
    sim.add_set(1, [0, 1], 1)
    sim.step(1)
    sim.inject(1, False, add_set(1, [0, 1, 2]))
    sim.step(1)
    [(kind, cause)] = sim.take_events(1)
    assert kind == "aborted" and "in another way" in cause


def test_a_rank_speaks_for_itself_only():
    sim = ProtocolSim([-1, 0, 0])
    sim.inject(1, True, message(0, 1, 2, 1, 0, 1, *request("x")))
    sim.step(0)
    [(kind, cause)] = sim.take_events(0)
    assert kind == "aborted" and cause.startswith("rank 0: rank 1: ") and "another rank" in cause


@pytest.mark.parametrize("what", ["requests", "tensors", "members"])
def test_items_that_are_not_there_take_no_memory(what):
    """A frame may announce as many items as it has bytes, and an item is much larger than a byte."""
    n = 16 << 20
    signature = request("x", tensors=())[-1][:-1]  # without the number of tensors
    head = {
        "requests": (0, 0, 0, n),
        "tensors": (0, 0, 0, 1, 0, *text("x"), 0, len(signature) + len(varint(n)) + n, signature, n),
        "members": (9, n),
    }[what]
    sim = ProtocolSim([-1, 0])
    frame = message(*head, b"\xff" * n)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sim.inject(1, False, frame)
    events = []
    while not events:
        sim.step(1)
        events = sim.take_events(1)
    assert [e[0] for e in events] == ["aborted"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # KiB


@pytest.mark.parametrize(
    "announced",
    [request("#process_sets"), request("#set/0,1/x"), request("x", kind=ADD_SET, tensors=())],
    ids=["a tensor under the sets' name", "a tensor under a set's name", "a set under a tensor's name"],
)
def test_names_of_process_sets_are_reserved(announced):
    sim = ProtocolSim([-1, 0])
    sim.inject(1, True, message(0, 1, 1, 1, 0, 1, *announced))
    sim.step(0)
    [(kind, cause)] = sim.take_events(0)
    assert kind == "aborted" and cause.startswith("rank 0: rank 1: ") and "process sets" in cause


def test_a_rank_that_has_not_left_does_not_hear_that_it_has():
    assert "has left" in cause_after(message(5, 1, *text("bye")))
    assert cause_after(message(5, 0, *text("bye"))) is None
