"""Values that the members of a group put together in the store: the bytes of one member's part, and the whole value.

The store joins the parts (engine/store/gather.h); the format is described in store.py. Pure functions.
"""

import struct
from dataclasses import dataclass

_WORD = struct.Struct("<I")


@dataclass(frozen=True)
class Gathered:
    """``commons``: the different common bytes, each with the members that brought them (ascending), in the order of the
    first of them. ``parts``: (members, bytes of their own), in the order of their first members."""

    commons: list
    parts: list


def part_bytes(size, members, common=b"", own=b"", label=""):
    """The payload of a GATHER. ``size``: of the group; ``members``: whose part it is."""
    name = label.encode()
    head = struct.pack(f"<II{len(members)}I", size, len(members), *members)
    return head + _WORD.pack(len(name)) + name + _WORD.pack(len(common)) + common + own


def read(value):
    """The Gathered of a whole value (bytes). Raises struct.error if the bytes are no such value."""
    at = 0

    def words(count):
        nonlocal at
        found = struct.unpack_from(f"<{count}I", value, at)
        at += 4 * count
        return found

    def text():
        nonlocal at
        (count,) = words(1)
        found = value[at : at + count]
        at += count
        return found

    commons, parts = [], []
    for _ in range(words(1)[0]):
        runs = words(2 * words(1)[0])
        members = [m for first, n in zip(runs[::2], runs[1::2], strict=True) for m in range(first, first + n)]
        commons.append((text(), members))
    while at < len(value):
        members = words(words(1)[0])
        parts.append((members, text()))
    commons.sort(key=lambda common: common[1][0])
    return Gathered(commons, parts)
