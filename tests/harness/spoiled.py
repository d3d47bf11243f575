"""Spoiled bytes: right ones with a few changes, for tests of the readers of wire formats."""


def spoil(rng, data):
    """`data` with one to three bytes or ranges changed, cut off or inserted. `rng`: a random.Random."""
    data = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        kind, at = rng.randrange(4), rng.randrange(len(data) + 1)
        if kind == 0 and at < len(data):
            data[at] = rng.randrange(256)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            data[at:at] = rng.randbytes(rng.randint(1, 9))
        elif at < len(data):
            data[at] ^= 1 << rng.randrange(8)
    return bytes(data)
