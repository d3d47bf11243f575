"""Checks and pickles the function of a job and its arguments, before anything starts. Any thread."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

# Values within values that are looked at for one that cannot be pickled.
_DEEPEST = 6


def checked(caller: str, func: Any, args: Any, kwargs: Any) -> tuple[Callable, tuple, dict]:
    """The function and its arguments. `caller`: what the user has called. Raises TypeError."""
    if not callable(func):
        raise TypeError(f"{caller}: the function to run must be callable, found {func!r}.")
    kwargs = {} if kwargs is None else kwargs
    if not isinstance(args, Iterable) or isinstance(args, (str, bytes, Mapping)):
        raise TypeError(f"{caller}: args must be a tuple, a list or another iterable, found {args!r}.")
    args = tuple(args)
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise TypeError(f"{caller}: kwargs must be a dict of names and values, found {kwargs!r}.")
    try:
        # Of the function itself: a decorator may supply arguments of the function that it wraps.
        signature = inspect.signature(func, follow_wrapped=False)
    except (TypeError, ValueError):  # some builtins have none
        signature = None
    if signature is not None:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(
                f"{caller}: {_name(func)}{signature} cannot be called with these args and kwargs: {error}."
            ) from None
    return func, args, dict(kwargs)


def pickled(caller: str, func: Callable, args: tuple, kwargs: dict, sent: Any = None) -> bytes:
    """(func, args, kwargs), or `sent` in the place of func, for the ranks. Raises TypeError that names the value which
    cannot be pickled."""
    import cloudpickle

    try:
        return cloudpickle.dumps((func if sent is None else sent, args, kwargs))
    except Exception as error:
        parts = [("the function " + _name(func), func)]
        parts += [(f"args[{i}]", value) for i, value in enumerate(args)]
        parts += [(f"kwargs[{name!r}]", value) for name, value in kwargs.items()]
        found = next((found for where, value in parts if (found := _culprit(where, value))), None)
        where, kind = found or ("a value", "?")
        raise TypeError(
            f"{caller}: {where}, of type {kind}, cannot be sent to the ranks: {error}. Make it within the function, or "
            "pass what is needed to make it."
        ) from error


def _culprit(where: str, value: Any, depth: int = 0) -> tuple[str, str] | None:
    """(place, type) of the innermost value that cannot be pickled; None if `value` can be."""
    import cloudpickle

    try:
        cloudpickle.dumps(value)
        return None
    except Exception:
        pass
    if depth < _DEEPEST:
        for place, inner in _parts(where, value):
            if inner is not value and (found := _culprit(place, inner, depth + 1)):
                return found
    return where, type(value).__qualname__


def _parts(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, types.MethodType):
        yield f"self of {where}", value.__self__
        yield where, value.__func__
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):
            try:
                yield f"variable {name!r} of {where}", cell.cell_contents
            except ValueError:  # it has no value yet
                continue
        for name in _names(value.__code__):
            if name in value.__globals__:
                yield f"global variable {name!r} of {where}", value.__globals__[name]
        for inner in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()):
            yield f"a default of {where}", inner
    elif isinstance(value, functools.partial):
        yield where, value.func
        yield from _parts(f"the arguments of {where}", [*value.args, *value.keywords.values()])
    elif isinstance(value, Mapping):
        yield from ((f"[{key!r}] of {where}", inner) for key, inner in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"[{i}] of {where}", inner) for i, inner in enumerate(value))
    elif isinstance(getattr(value, "__dict__", None), dict):
        yield from ((f"attribute {name!r} of {where}", inner) for name, inner in vars(value).items())


def _names(code: types.CodeType) -> list[str]:
    """The names of global variables that a function may use, those of functions within it too."""
    inner = [name for part in code.co_consts if isinstance(part, types.CodeType) for name in _names(part)]
    return [*code.co_names, *inner]


def _name(func: Any) -> str:
    return getattr(func, "__qualname__", None) or repr(func)
