"""Small helpers around TensorFlow's variables and modes. No communication; any thread.

Programs written for Horovod import the functions whose names begin with an underscore.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, TypeVar

import tensorflow as tf

from horovod.common._elastic_job import ranks_may_change

__all__ = ["refs_to_vars", "vars_to_refs"]

_R = TypeVar("_R")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_Item = TypeVar("_Item")


def do_not_convert(function: _Function) -> _Function:
    """Tell AutoGraph to call a function as it is: rewriting it costs tens of milliseconds, and so does each function that
    it calls. Sets AutoGraph's mark, as its decorator costs each eager call more."""
    setattr(function, "autograph_info__", {})  # noqa: B010 (the type of a function has no such attribute)
    return function


def _executing_eagerly() -> bool:
    """Whether an operation called now is executed immediately."""
    return bool(tf.executing_eagerly())


def _make_subgraph(function: Callable[..., Any]) -> Any:
    return tf.function(function)


def _cache(function: Callable[..., _R]) -> Callable[..., _R]:
    """`function` with a cache: by its arguments (positional, hashable) and by whether the caller is in eager mode."""
    results: dict[tuple[Any, ...], _R] = {}

    @wraps(function)
    def remembered(*args: Any) -> _R:
        key = (args, _executing_eagerly())
        if key not in results:
            results[key] = function(*args)
        return results[key]

    return remembered


def plain_variable(variable: Any) -> Any:
    """The tf.Variable inside a variable of Keras 3; any other object itself."""
    if isinstance(variable, tf.Variable):
        return variable
    held = getattr(variable, "_value", None)
    return held if isinstance(held, tf.Variable) else variable


def ref(variable: Any) -> Any:
    """A key for sets and dicts that identifies a variable (of TensorFlow, or of Keras 3) or a tensor."""
    return plain_variable(variable).ref()


def values_of(variable: Any) -> Any:
    """The present values of a variable as an array of NumPy, also while a tf.function is traced; None where they are not
    known: in a graph of TensorFlow 1, and before the variable has values."""
    with tf.init_scope():
        if not tf.executing_eagerly():
            return None
        try:
            return plain_variable(variable).numpy()
        except (tf.errors.OpError, AttributeError, ValueError):
            return None


def vars_to_refs(variables: Any) -> Any:
    """The same structure of (lists of) variables as tuples of their references, which can be hashed."""
    if isinstance(variables, (list, tuple)):
        return tuple(vars_to_refs(v) for v in variables)
    return ref(variables)


def refs_to_vars(refs: Any) -> Any:
    """The variables of the structure that vars_to_refs() returned, as lists."""
    if isinstance(refs, (list, tuple)):
        return [refs_to_vars(r) for r in refs]
    return refs.deref()


def on_device(device: str) -> AbstractContextManager[Any]:
    """The scope of tf.device(); a scope without effect for an empty name."""
    return tf.device(device) if device else nullcontext()


def decided_at_run_time() -> bool:
    """Whether the number of ranks may change under a graph that is built already."""
    return ranks_may_change()


def flat_variables(variables: Any) -> list[Any]:
    """A list of variables as TensorFlow knows them, from a list, another iterable, or a method that returns one
    (``optimizer.variables`` of Keras 2)."""
    if callable(variables) and not isinstance(variables, Iterable):
        variables = variables()
    return [plain_variable(v) for v in tf.nest.flatten(list(variables))]


# The most bytes that one operation gets of many tensors. While it runs their memory is needed a second time.
GROUP_BYTES = 128 << 20


def bytes_of(value: Any) -> int:
    """The size of a variable or a tensor; 0 if its shape is not known."""
    return int((value.shape.num_elements() or 0) * value.dtype.size)


def runs_of(
    items: Iterable[_Item], kind: Callable[[_Item], Any], size: Callable[[_Item], int], most: int
) -> list[list[_Item]]:
    """Neighbours of one kind, in lists of at most `most` bytes."""
    runs: list[list[_Item]] = []
    last, filled = None, 0
    for item in items:
        if not runs or kind(item) != last or filled + size(item) > most:
            runs.append([])
            last, filled = kind(item), 0
        runs[-1].append(item)
        filled += size(item)
    return runs


def gpu_available(*_: Any, **__: Any) -> bool:
    """Whether TensorFlow sees a GPU. Arguments of older programs are ignored."""
    return bool(tf.config.list_physical_devices("GPU"))


def check_num_rank_power_of_2(num_rank: int) -> None:
    """Does nothing, as Adasum here works with any number of ranks. Programs written for Horovod call it."""


# Which exceptions of TensorFlow may be a failed operation. Any thread.

_MISTAKES = (tf.errors.FailedPreconditionError, tf.errors.InvalidArgumentError)


def may_be_of_operation(error: Exception) -> bool:
    """Whether an exception may be the end of the job, as an operation or a function of TensorFlow raises it."""
    return isinstance(error, tf.errors.OpError) and not isinstance(error, _MISTAKES)
