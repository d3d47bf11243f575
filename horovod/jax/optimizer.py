"""Averaging gradients: of a tree, of a function, and in an optimizer of optax. In programs and outside. Any thread."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax

from horovod.common.arguments import Average, check_predivide_factor, check_registered, predivide_factors
from horovod.common.failed_calls import reported_for_each
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.jax._trace import is_traced, name_in_program
from horovod.jax.compression import Compression, Compressor
from horovod.jax.mpi_ops import allreduce

__all__ = ["DistributedGradientTransformation", "allreduce_gradients", "value_and_grad"]

# Gradients are reduced in operations of about so many bytes: one is sent while the backward pass computes the next.
BUCKET_BYTES = 25 << 20


def allreduce_gradients(
    gradients: Any,
    op: int = Average,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    gradient_predivide_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    bucket_bytes: int = BUCKET_BYTES,
) -> Any:
    """Reduce a tree of gradients over all ranks.

        gradients = hvd.allreduce_gradients(jax.grad(loss_of)(params, x, y))

    Args:
        gradients: a pytree of arrays; the same structure, shapes and dtypes on all ranks.
        op, name, compression, process_set: as in allreduce().
        gradient_predivide_factor: gradients are divided by it before the sum, and multiplied by it afterwards; with
            op=Average only.
        bucket_bytes: neighbours in the tree are reduced together, up to about so many bytes in one operation. The last
            gradients of the tree, which a backward pass computes first, come first.

    Returns:
        A tree of the same structure.

    Raises:
        ValueError: as in allreduce(), and for a factor that makes no sense.
        NotImplementedError, HorovodInternalError: as in allreduce().
    """
    with _reported(name, process_set):
        check_predivide_factor(gradient_predivide_factor, op)
        factors = predivide_factors(gradient_predivide_factor)
        leaves, structure = jax.tree_util.tree_flatten(gradients)
        # Without gradients an empty operation, so that the ranks that have gradients get an error.
        buckets = buckets_of(leaves, bucket_bytes) or [[]]
    results = list(leaves)
    for number, bucket in enumerate(buckets):
        bucket_name = None if name is None else f"{name}.{number}" if number else name
        reduced = allreduce(
            [leaves[i] for i in bucket], op, bucket_name, compression, *factors, process_set=process_set
        )
        for place, value in zip(bucket, reduced):
            results[place] = value
    return jax.tree_util.tree_unflatten(structure, results)


@contextmanager
def _reported(name: str | None, process_set: ProcessSet) -> Iterator[None]:
    """A guard before an allreduce: a mistake is reported under the name that the allreduce has in a program."""
    names: list[Any] = [name]
    with reported_for_each("allreduce", "allreduce", names, process_set):
        try:
            yield
        except Exception:
            if is_traced(()):
                names[0] = name_in_program("allreduce", name)
            raise


def buckets_of(leaves: list[Any], limit: int = BUCKET_BYTES) -> list[list[int]]:
    """The places of the leaves in runs of about `limit` bytes, the last leaves first."""
    buckets: list[list[int]] = []
    filled = limit
    for place in reversed(range(len(leaves))):
        size = getattr(leaves[place], "nbytes", 8)
        if filled and filled + size > limit:
            buckets.append([])
            filled = 0
        buckets[-1].append(place)
        filled += size
    return buckets


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    op: int = Average,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    gradient_predivide_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    **options: Any,
) -> Callable[..., Any]:
    """jax.value_and_grad(), whose gradients are reduced over all ranks. The value is this rank's.

        loss, gradients = jax.jit(hvd.value_and_grad(loss_of))(params, x, y)

    Args:
        fun, argnums, has_aux, options: as in jax.value_and_grad().
        op, name, compression, gradient_predivide_factor, process_set: as in allreduce_gradients().

    Returns:
        A function of the arguments of `fun`. It raises the errors of allreduce_gradients().
    """
    plain = jax.value_and_grad(fun, argnums=argnums, has_aux=has_aux, **options)

    @functools.wraps(fun)
    def call(*arguments: Any, **keywords: Any) -> tuple[Any, Any]:
        value, gradients = plain(*arguments, **keywords)
        reduced = allreduce_gradients(
            gradients, op, name, compression, gradient_predivide_factor, process_set
        )
        return value, reduced

    return call


def DistributedGradientTransformation(
    optimizer: Any,
    op: int = Average,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    gradient_predivide_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """An optax optimizer that reduces the gradients over all ranks in update(), and then does what the optimizer does.

        optimizer = hvd.DistributedGradientTransformation(optax.adam(0.001 * hvd.size()))

    Its state is that of the optimizer. To sum the gradients of several passes before they are sent, wrap the result in
    optax.MultiSteps.

    Args:
        optimizer: an optax.GradientTransformation; another one of the same class is returned.
        op, name, compression, gradient_predivide_factor, process_set: as in allreduce_gradients().

    Raises:
        ValueError: the process set is not registered, or the factor makes no sense. TypeError: `optimizer` is no
            GradientTransformation.
    """
    check_predivide_factor(gradient_predivide_factor, op)
    check_registered(process_set, "DistributedGradientTransformation")
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update") and hasattr(optimizer, "_replace")):
        raise TypeError(
            "DistributedGradientTransformation wraps an optax.GradientTransformation, but found "
            f"{type(optimizer).__name__}."
        )

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        reduced = allreduce_gradients(updates, op, name, compression, gradient_predivide_factor, process_set)
        return optimizer.update(reduced, state, params, **extra)

    return optimizer._replace(update=update)
