"""Whether JAX is tracing a program now, and the names that operations get in it. Any thread.

A compiled program runs its operations in any order, so each needs a name. Names must be the same on all ranks although
these trace at different moments, and some more often than others. So a name is made of the program's text: the
caller's name, unchanged, or the file and line of the call. A number is appended to the second and later unnamed calls of
one line within the program that is being traced. It is not appended to the caller's names: of two calls that are traced
perhaps only one runs, as in the branches of lax.cond, and ranks that take different branches meet by the name. Two calls
of one name that do run at the same time are an error then (native/collective.cc).

JAX keeps what it has traced of a function that is jitted itself, and uses it again wherever the function is called, also
within another program. So such a function names and counts its operations by itself: nothing outside of it takes part,
neither the line that calls it nor the operations of the program around it, which may be other ones when another rank
traces it.
"""

import os
import sys
import weakref
from collections import Counter
from types import FrameType
from typing import Any

import jax

try:
    from jax._src.core import EvalTrace, trace_ctx, trace_state_clean
except ImportError:  # another version: what follows does without
    EvalTrace, trace_ctx, trace_state_clean = (), None, None

# The call that is looked for is not in these packages.
_LIBRARIES = frozenset(
    ("horovod", "jax", "jaxlib", "optax", "flax", "equinox", "haiku", "keras", "functools", "contextlib")
)
# JAX traces a function that is jitted itself from here.
_JIT = "jax._src.pjit"

_counts: weakref.WeakKeyDictionary[Any, Counter[tuple[str, str]]] = weakref.WeakKeyDictionary()


def is_traced(arrays: Any) -> bool:
    """Whether an operation on `arrays` belongs to a program that is being traced."""
    if trace_state_clean is not None and not trace_state_clean():
        return True
    return any(isinstance(array, jax.core.Tracer) for array in arrays)


def name_in_program(operation: str, name: str | None) -> str:
    """The name of an operation that is being traced. `name`: the caller's, or None."""
    if name is not None:
        return name
    trace, function = _program()
    base = _place(function)
    counts = _counts_of(trace)
    count = counts[operation, base]
    counts[operation, base] += 1
    return f"{base}_{count}" if count else base


def _place(function: str) -> str:
    """File and line of the program's call of this package, and the jitted function that has the line. No
    folder, which may differ from rank to rank."""
    own = sys._getframe(1)
    frame: FrameType | None = own
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] not in _LIBRARIES:
            return _line(frame) + function
        if module == _JIT:  # a function that is jitted itself belongs to a library
            break
        if module.startswith("horovod."):
            own = frame
        frame = frame.f_back
    return _line(own) + function


def _line(frame: FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _program() -> tuple[Any, str]:
    """The trace of the innermost function that is jitted itself, and " in FUNCTION". Outside of such functions the
    outermost trace, and "". None without a trace."""
    trace = None if trace_ctx is None else trace_ctx.trace
    while trace is not None and not isinstance(trace, EvalTrace):
        about: Any = getattr(getattr(trace, "frame", None), "debug_info", None)
        if getattr(about, "traced_for", None) == "jit":
            return trace, f" in {about.func_name}"
        parent = getattr(trace, "parent_trace", None)
        if parent is None or isinstance(parent, EvalTrace):
            return trace, ""
        trace = parent
    return None, ""


def _counts_of(trace: Any) -> Counter[tuple[str, str]]:
    try:
        return _counts.setdefault(trace, Counter())
    except TypeError:  # no trace, or one that cannot be referred to weakly: all calls of one name have it
        return Counter()
