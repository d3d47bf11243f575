"""Adasum by its definition: two vectors at a time, in float64, in the documented order. Nothing of ours is used."""

import math
import sys


def pair(a, b):
    dot, na, nb = (math.fsum(products.tolist()) for products in (a * b, a * a, b * b))
    tiny = math.sqrt(sys.float_info.min)
    wa = 1.0 if na < tiny else 1 - dot / (2 * na)
    wb = 1.0 if nb < tiny else 1 - dot / (2 * nb)
    return wa * a + wb * b


def tree(vectors):
    """The documented order: ranks beyond a power of two into the first ones, then halves of the remaining ranks."""
    n = len(vectors)
    power = 1 << (n.bit_length() - 1)
    folded = [pair(vectors[i], vectors[i + power]) if i + power < n else vectors[i] for i in range(power)]

    def combine(some):
        half = len(some) // 2
        return some[0] if half == 0 else pair(combine(some[:half]), combine(some[half:]))

    return combine(folded)
