"""Elastic training with JAX: ``hvd.elastic.run`` and ``JaxState``. See docs/elastic.md."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from horovod.common import _elastic_state
from horovod.common.elastic import ObjectState, State, commit_async, restart, run_fn, worker_id, workers
from horovod.common.exports import rank
from horovod.jax.functions import broadcast_object, broadcast_parameters

__all__ = ["JaxState", "commit_async", "run", "worker_id", "workers"]


# Copies of pytrees that outlive their arrays: a program may be given an array to write over it (donation).
#
# The copies are in memory of NumPy, which the next copy uses again. Any thread.


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
    known: list[Any] = []
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


# Which exceptions of JAX may be a failed operation in a compiled program. Any thread.

# How the message begins if the program has made a mistake, and if a program whose result JAX awaits fails otherwise.
_MISTAKES = ("FAILED_PRECONDITION", "INVALID_ARGUMENT")
_OTHERS = ("UNKNOWN: ", "ABORTED: ", "INTERNAL: ", "CANCELLED: ")


def may_be_of_operation(error: Exception) -> bool:
    """Whether an exception may be the end of the job, as a compiled program raises it."""
    text = str(error)
    if type(error) is ValueError:
        return text.startswith(_OTHERS)
    # Old versions of JAX have another name for it.
    kinds = (getattr(jax.errors, "JaxRuntimeError", ()),)
    return (isinstance(error, kinds) or type(error).__name__ == "XlaRuntimeError") and not text.startswith(
        _MISTAKES
    )


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training function whose first parameter is a state: it is called again when ranks have changed.

        state = hvd.elastic.JaxState(params=params, opt_state=opt_state, epoch=0)

        @hvd.elastic.run
        def train(state):
            while state.epoch < 10:
                for x, y in batches(hvd.rank(), hvd.size()):
                    state.params, state.opt_state = step(state.params, state.opt_state, x, y)
                state.epoch += 1
                state.commit()

        train(state)

    Each call begins with the state of the last commit, on all ranks. It is called again after the death of a rank, also
    if a compiled program has noticed it, and after a commit at which ranks were added or removed. Mistakes of the program
    (a mismatch of ranks, a wrong argument) are raised immediately.

    Returns:
        A function with the parameters and the result of `func`.
    """
    return run_fn(func, restart, may_be_of_operation)


class JaxState(ObjectState):
    """The state of a training with JAX, for ``hvd.elastic.run``.

    Args:
        kwargs: the values, by name. Pytrees with arrays (parameters, states of optax, keys of random generators) are
            copied to host memory at a commit, and their arrays are sent as arrays. Other values are kept as in an
            ObjectState: those with state_dict() and load_state_dict() by their state, others (epoch=0) as copies.

    The values are attributes: ``state.params = optax.apply_updates(state.params, updates)``. Arrays may be donated to a
    program. All ranks have the same trees: a new rank makes them before it calls the training function.
    """

    def __init__(self, **kwargs: Any) -> None:
        State.__init__(self, _broadcast, rank)
        self._saved_state, self._owners = dict.fromkeys(kwargs), {}
        self._saved_trees: Any = None
        for name, value in kwargs.items():
            setattr(self, name, value)
        self.save()

    def save(self) -> None:
        present = self._present()
        trees = {name: value for name, value in present.items() if _has_arrays(value)}
        plain = {name: None if name in trees else value for name, value in present.items()}
        # If a value cannot be copied, the last commit stays as a whole.
        owners, copies = self._copies_of(plain)
        self._saved_trees = copied(trees, self._saved_trees)
        self._owners, self._saved_state = owners, copies

    def restore(self) -> None:
        super().restore()
        for name, value in restored(self._saved_trees).items():
            setattr(self, name, value)

    def durable_parts(self) -> dict[str, Any]:
        return {**super().durable_parts(), "trees": self._saved_trees}

    def set_durable_parts(self, parts: dict[str, Any]) -> None:
        super().set_durable_parts(parts)
        self._saved_trees = parts["trees"]

    def sync(self) -> None:
        self._require_same_values()
        present = self._present()
        trees = [name for name, value in present.items() if _has_arrays(value)]
        plain = {name: value for name, value in present.items() if name not in trees}
        trees = self._take_sent(plain, trees)
        alike = self._alike(trees)
        for name in trees:
            if name not in alike:
                value = broadcast_parameters(present.get(name), 0, f"horovod.elastic.{name}")
                setattr(self, name, value)
        self.save()

    def _alike(self, trees: list[str]) -> list[str]:
        """Those of the trees that are the same on all ranks."""
        if not _elastic_state.is_in_step():
            return []
        self.save()  # they are the committed ones, but for what reset callbacks have done
        owners, leaves = [], []
        for name in trees:
            of_tree = jax.tree_util.tree_leaves(self._saved_trees.get(name))
            owners += [name] * len(of_tree)
            leaves += of_tree
        differ = {name for name, same in zip(owners, _elastic_state.alike(leaves)) if not same}
        return [name for name in trees if name not in differ]


def _has_arrays(value: Any) -> bool:
    return any(isinstance(leaf, (jax.Array, np.ndarray)) for leaf in jax.tree_util.tree_leaves(value))


def _broadcast(value: Any) -> Any:
    return broadcast_object(value, 0, name="horovod.elastic.values")
