"""Options of backends: their declarations, and the types, ranges and values of their texts.

A backend declares type and range of each option (``hvd_option`` in backend_abi.h describes both). Front ends check what
users have set, and a backend in Python reads its options, by the same rules. The variable of an option is
HOROVOD_BACKEND_<NAME>_<OPTION>. Any thread.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hvd_core.backends._messages import option_variable

TYPES = ("int", "size", "float", "bool", "enum", "str", "path")
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(i?b)?", re.IGNORECASE)
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def fault(rule: Mapping[str, Any], text: str) -> str | None:
    """The range or type that an option's text violates, for a message; None if the text is valid. ``rule``: one dict of
    a schema."""
    kind, limits, text = rule["type"], rule["range"], text.strip()
    if not text:
        return None  # the same as unset
    if kind == "bool":
        return None if text.lower() in _TRUE + _FALSE else "0 or 1"
    if kind == "enum":
        words = [w.strip() for w in re.split(r"[,|]", limits) if w.strip()]
        return (
            None if not words or text.lower() in [w.lower() for w in words] else f"one of {', '.join(words)}"
        )
    if kind not in ("int", "size", "float"):
        return None
    number = _number(kind, text)
    low, high = _limits(limits)
    if number is not None and (low is None or number >= low) and (high is None or number <= high):
        return None
    what = {"int": "a whole number", "size": "a size such as 4096 or 64KiB", "float": "a number"}[kind]
    if low is not None and high is not None:
        return f"{what} from {_plain(low)} to {_plain(high)}"
    return what + (f" of at least {_plain(low)}" if low is not None else "")


def _number(kind: str, text: str) -> float | None:
    try:
        if kind == "float":
            return float(text)
        if kind == "int":
            return int(text, 10)
    except ValueError:
        return None
    found = _SIZE.fullmatch(text)
    if found is None:
        return None
    # Every spelling means a power of 1024, as usual for memory.
    return int(found[1]) * 1024 ** "kmgt".index(found[2].lower()) * 1024 if found[2] else int(found[1])


def _limits(text: str) -> tuple[float | None, float | None]:
    low, dots, high = text.partition("..")
    if not dots:
        return None, None
    return _bound(low), _bound(high)


def _bound(text: str) -> float | None:
    number = _number("size", text.strip())
    if number is not None:
        return number
    try:
        return float(text)
    except ValueError:
        return None


def _plain(number: float) -> str:
    return f"{number:g}" if number != int(number) else str(int(number))


def value(rule: Mapping[str, Any], text: str) -> Any:
    """The value of a text without a fault: an int (also for a size), a float, a bool, or the text itself."""
    kind, text = rule["type"], text.strip()
    if kind == "bool":
        return text.lower() in _TRUE
    number = _number(kind, text) if kind in ("int", "size", "float") else None
    return text if number is None else number


@dataclass(frozen=True)
class Option:
    """``type``: one of _options.TYPES. ``range``: "0..100" for numbers and sizes, "a, b, c" for an enum; for people
    otherwise. Raises ValueError for an unknown type, and for a ``fallback`` that is no value of the type."""

    name: str
    type: str
    fallback: str
    range: str
    doc: str

    def __post_init__(self) -> None:
        if self.type not in TYPES:
            known = ", ".join(TYPES)
            raise ValueError(f"horovod: option '{self.name}' has the type {self.type!r}; known: {known}.")
        if wanted := fault(asdict(self), self.fallback):
            raise ValueError(
                f"horovod: the default of option '{self.name}' must be {wanted}, but is {self.fallback!r}."
            )

    def texts(self) -> tuple[str, str, str, str, str]:
        """The fields in the order of the C table."""
        return (self.name, self.type, self.fallback, self.range, self.doc)


def read_option(backend: str, option: Option) -> Any:
    """The option's value, converted to its type. Raises ValueError that names the variable."""
    variable = option_variable(backend, option.name)
    text = os.environ.get(variable, "").strip() or option.fallback
    if wanted := fault(asdict(option), text):
        raise ValueError(f"horovod: {variable} must be {wanted}, but is {text!r}.")
    return value(asdict(option), text)
