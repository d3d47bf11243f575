"""Elastic training with JAX: ``hvd.elastic.run`` and ``JaxState``. See docs/elastic.md."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from horovod.common import _elastic_state
from horovod.common.elastic import ObjectState, State, commit_async, restart, run_fn, worker_id, workers
from horovod.common.exports import rank
from horovod.jax._copies import copied, restored
from horovod.jax._failures import may_be_of_operation
from horovod.jax.functions import broadcast_object, broadcast_parameters

__all__ = ["JaxState", "commit_async", "run", "worker_id", "workers"]


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
    (a mismatch of ranks, a wrong argument) are raised at once.

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
