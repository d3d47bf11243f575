"""Broadcasting parameters and Python objects. All ranks call them outside of compiled programs, one thread each."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from horovod.common.failed_calls import reported_for_each
from horovod.common.objects import allgather_object, broadcast_object, prepared, require_same
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.jax._trace import is_traced
from horovod.jax.mpi_ops import broadcast

__all__ = ["allgather_object", "broadcast_object", "broadcast_parameters"]

_NAME = "broadcast_parameters"


def broadcast_parameters(
    params: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The root's parameters on all ranks: for a model's parameters, an optimizer's state, or both in one tree.

    Arrays of JAX do not change, so use the result: ``params = hvd.broadcast_parameters(params)``.

    Args:
        params: a pytree. Arrays, numbers and keys of random generators are sent; other leaves (functions, texts) stay
            what they are on this rank. Structure, shapes and dtypes must be the same on all ranks, which is checked
            first.
        root_rank: the GLOBAL rank whose values are sent, also within a process set.
        name: begins the names of the operations; required for calls by several threads at the same time, a different
            one for each call.
        process_set: the ranks that take part.

    Returns:
        A pytree of the same structure, with new arrays of the same classes.

    Raises:
        ValueError: an array cannot be sent, or in a compiled program; the other ranks' calls fail.
        NotImplementedError: an array is not in host memory.
        OperationFailedError: the ranks' structures, shapes or dtypes differ (the message says where), or another rank has
            made a mistake. HorovodInternalError: a rank is gone.
    """
    call = f"{_NAME}()" if name is None else f"{_NAME}(name={name!r})"
    name = _NAME if name is None else name
    with prepared(name, process_set):
        if is_traced(jax.tree_util.tree_leaves(params)):
            raise ValueError(
                "broadcast_parameters() cannot be a part of a compiled program. Call it outside of jit."
            )
        found, structure = jax.tree_util.tree_flatten_with_path(params)
        leaves = [leaf for _, leaf in found]
        places = [i for i, leaf in enumerate(leaves) if _is_sendable(leaf)]
        entries = [_entry(*found[i]) for i in places]
    require_same(call, entries, name, process_set)
    if not places:
        return params
    with reported_for_each("broadcast", "broadcast", [name], process_set):
        sent = [_plain(leaves[i]) for i in places]
    for place, value in zip(places, broadcast(sent, root_rank, name, process_set)):
        leaves[place] = _like(value, leaves[place])
    return jax.tree_util.tree_unflatten(structure, leaves)


def _entry(path: tuple[Any, ...], leaf: Any) -> tuple[str, tuple[Any, ...], str]:
    array = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    return jax.tree_util.keystr(path), array.shape, str(array.dtype)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _is_sendable(leaf: Any) -> bool:
    if isinstance(leaf, (jax.Array, np.ndarray, np.generic)):
        return _is_key(leaf) or leaf.dtype.kind not in "OSUV" or hasattr(jnp, leaf.dtype.name)
    return isinstance(leaf, (bool, int, float))


def _plain(leaf: Any) -> Any:
    if _is_key(leaf):
        return jax.random.key_data(leaf)
    if isinstance(leaf, jax.Array):
        return leaf
    # As bytes: JAX would make 32 bits of 64.
    return np.frombuffer(np.asarray(leaf).tobytes(), np.uint8)


def _like(value: Any, leaf: Any) -> Any:
    if _is_key(leaf):
        return jax.random.wrap_key_data(value, impl=jax.random.key_impl(leaf))
    if isinstance(leaf, jax.Array):
        return value
    own = np.asarray(leaf)
    array = np.frombuffer(np.asarray(value).tobytes(), own.dtype).reshape(own.shape).copy()
    return array if isinstance(leaf, np.ndarray) else type(leaf)(array.item())
