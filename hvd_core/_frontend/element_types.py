"""Which element types can be moved, and which can be reduced. One rule for all frameworks; data only.

A front end maps these names to its framework's types, leaving out those that its framework does not have:
``frozenset(getattr(framework, name) for name in REDUCIBLE if hasattr(framework, name))``.
"""

from __future__ import annotations

from hvd_core.types import DTYPES

NUMBERS = {name: dtype.number for name, dtype in DTYPES.items()}
"""The engine's number of each element type, by its name in NumPy ("float32")."""

MOVABLE = frozenset(NUMBERS)
"""Types that allgather, broadcast and alltoall take."""

REDUCIBLE = frozenset(name for name, dtype in DTYPES.items() if dtype.reducible) - {"uint32", "uint64"}
"""Types that allreduce and reducescatter take in the frameworks' front ends: integers, and floats of 16 bits and more.
The original Horovod reduces neither uint32 nor uint64. The engine does, and bool but for averages; the NumPy API leaves
the choice to the engine."""


def unsupported_text(name: str, reduces: bool) -> str:
    """The text of the ValueError for a type that an operation does not take.

    Args:
        name: of the type, as the framework writes it.
        reduces: whether the operation is a reduction and only moves would take the type.
    """
    text = f"Tensor type {name} is not supported."
    if reduces:
        text += " Reductions take integers of up to 64 bits but uint32 and uint64, and floats of 16 bits and more."
    return text
