"""Whether JAX is tracing a program now, and the names that operations get in it. Any thread.

A compiled program runs its operations in any order, so each needs a name. Names must be the same on all ranks although
these trace at different moments, and some more often than others. So a name is made of the program's text: the
caller's name, or the file and line of the call. A number is appended to the second and later calls of one name within the
outermost program that is being traced.
"""

import os
import sys
import weakref
from collections import Counter
from typing import Any

import jax

try:
    from jax._src.core import EvalTrace, trace_ctx, trace_state_clean
except ImportError:  # another version: what follows does without
    EvalTrace = trace_ctx = trace_state_clean = None

# The call that is looked for is not in these packages.
_LIBRARIES = frozenset(
    ("horovod", "jax", "jaxlib", "optax", "flax", "equinox", "haiku", "keras", "functools", "contextlib")
)

_counts: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def is_traced(arrays: Any) -> bool:
    """Whether an operation on `arrays` belongs to a program that is being traced."""
    if trace_state_clean is not None and not trace_state_clean():
        return True
    return any(isinstance(array, jax.core.Tracer) for array in arrays)


def name_in_program(operation: str, name: str | None) -> str:
    """The name of an operation that is being traced. `name`: the caller's, or None."""
    base = _place() if name is None else name
    counts = _counts_of(_outermost_trace())
    count = counts[operation, base]
    counts[operation, base] += 1
    return f"{base}_{count}" if count else base


def _place() -> str:
    """File and line of the program's call of this package. The folder may differ from rank to rank."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _LIBRARIES:
            break
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _outermost_trace() -> Any:
    trace = None if trace_ctx is None else trace_ctx.trace
    while True:
        parent = getattr(trace, "parent_trace", None)
        if parent is None or isinstance(parent, EvalTrace):
            return trace
        trace = parent


def _counts_of(trace: Any) -> Counter:
    try:
        return _counts.setdefault(trace, Counter())
    except TypeError:  # no trace, or one that cannot be referred to weakly
        return Counter()
