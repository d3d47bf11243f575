"""Copies of pytrees that outlive their arrays: a program may be given an array to write over it (donation).

The copies are in memory of NumPy, which the next copy uses again. Any thread.
"""

from __future__ import annotations

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["copied", "restored"]


class _Copy:
    """The copy of one array of JAX. `key_type`: of a key of random generators; None for other arrays."""

    def __init__(self, values: np.ndarray, key_type: Any) -> None:
        self.values, self.key_type = values, key_type

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.values, dtype)

    def as_array(self) -> jax.Array:
        # Not a view: a program may write over the array that it is given.
        array = jnp.array(self.values, copy=True)
        return array if self.key_type is None else jax.random.wrap_key_data(array, impl=self.key_type)


def copied(tree: Any, earlier: Any) -> Any:
    """A copy of a pytree, for restored(). Arrays are waited for.

    Args:
        tree: arrays of JAX and NumPy, and any leaves that copy.deepcopy() takes.
        earlier: what copied() has returned for a tree like this one, and is not needed any more; or None.

    Raises:
        RuntimeError, jax.errors.JaxRuntimeError: an array has no values, as it was donated, or the program that computes
            it has failed. `earlier` is as it was.
    """
    leaves, structure = jax.tree_util.tree_flatten(tree)
    jax.block_until_ready([leaf for leaf in leaves if isinstance(leaf, jax.Array)])
    views = [_view(leaf) for leaf in leaves]  # all of them before the first copy
    known: list = []
    if earlier is not None:
        known, before = jax.tree_util.tree_flatten(earlier)
        known = known if before == structure else []
    copies = [
        _copy_of(leaf, view, known[i] if i < len(known) else None)
        for i, (leaf, view) in enumerate(zip(leaves, views))
    ]
    return jax.tree_util.tree_unflatten(structure, copies)


def restored(copies: Any) -> Any:
    """The pytree that copied() was given, with new arrays."""
    return jax.tree_util.tree_map(
        lambda leaf: leaf.as_array() if isinstance(leaf, _Copy) else copy.deepcopy(leaf), copies
    )


def _view(leaf: Any) -> np.ndarray | None:
    if not isinstance(leaf, jax.Array):
        return None
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _is_key(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _copy_of(leaf: Any, view: np.ndarray | None, earlier: Any) -> Any:
    if view is None:
        return copy.deepcopy(leaf)
    key_type = jax.random.key_impl(leaf) if _is_key(leaf) else None
    if not isinstance(earlier, _Copy) or (earlier.values.shape, earlier.values.dtype) != (
        view.shape,
        view.dtype,
    ):
        return _Copy(view.copy(), key_type)
    np.copyto(earlier.values, view)
    earlier.key_type = key_type
    return earlier
