"""Names and numbers of the operations. Data and pure functions; any thread."""

from __future__ import annotations

from hvd_core.types import OPERATIONS

NUMBERS = {name: operation.number for name, operation in OPERATIONS.items()}
"""The number of each operation in the native front-end table (hvd/frontend_abi.h)."""


def request_name(prefix: str, name: str | None) -> str | None:
    """The name under which the ranks negotiate a call; operations of different kinds may have the same ``name``.

    ``prefix``: the operation, or "grouped_allreduce" and so on where a front end keeps these apart. None, for an unnamed
    call, stays None: the engine numbers those.
    """
    return None if name is None else f"{prefix}.{name}"


def gradient_name(name: str | None, suffix: str = "grad") -> str | None:
    """The name of the operation that computes the gradient of the operation ``name``."""
    return None if name is None else f"{name}.{suffix}"
