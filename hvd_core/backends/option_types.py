"""The types of backends' options: which texts are values of a type within a range, and the values.

A backend declares type and range of each option (``hvd_option`` in backend_abi.h describes both). Front ends check what
users have set, and a backend in Python reads its options, by the same rules. Pure functions; any thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

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
