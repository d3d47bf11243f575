"""The tensors of a grouped operation. Pure functions; any thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def members_of(tensors: Any, tensor_type: type | tuple[type, ...]) -> list:
    """The tensors of a group as a new list, which may be empty. An iterator is used up by it.

    Args:
        tensors: the caller's argument.
        tensor_type: the framework's tensors. One tensor can be iterated over too, but it is not a group.

    Raises:
        ValueError: ``tensors`` is one tensor, or cannot be iterated over. A generator may raise other exceptions.
    """
    if isinstance(tensors, tensor_type) or not isinstance(tensors, Iterable):
        raise ValueError(f"A grouped operation takes a list of tensors, but found {type(tensors).__name__}.")
    return list(tensors)


def some_members_of(tensors: Any, tensor_type: type | tuple[type, ...]) -> list:
    """As members_of(). Raises ValueError also for an empty list."""
    members = members_of(tensors, tensor_type)
    if not members:
        raise ValueError("A grouped operation needs at least one tensor, but the list is empty.")
    return members
