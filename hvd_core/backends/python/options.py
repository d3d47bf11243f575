"""Options of a backend written in Python: declared and read like those of a library.

The variable of an option is HOROVOD_BACKEND_<NAME>_<OPTION>. Declared options appear in the table's schema, so that tools
show them and a misspelt variable is an error.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from hvd_core.backends.messages import option_variable


@dataclass(frozen=True)
class Option:
    """``type``: "int", "float", "bool", "str" or "enum". ``range``: "0..100" for numbers, "a, b, c" for an enum."""

    name: str
    type: str
    fallback: str
    range: str
    doc: str

    def texts(self) -> tuple[str, str, str, str, str]:
        """The fields in the order of the C table."""
        return (self.name, self.type, self.fallback, self.range, self.doc)


def read_option(backend: str, option: Option) -> Any:
    """The option's value, converted to its type. Raises ValueError that names the variable."""
    variable = option_variable(backend, option.name)
    text = os.environ.get(variable, "").strip() or option.fallback
    try:
        value = _parse(option, text)
    except ValueError:
        value = None
    if value is None or not _in_range(option, value):
        known = f" in {option.range}" if option.range else ""
        raise ValueError(f"horovod: {variable}={text!r} is not of type {option.type}{known}.")
    return value


def _parse(option: Option, text: str) -> Any:
    if option.type == "int":
        return int(text)
    if option.type == "float":
        return float(text)
    if option.type == "bool":
        return {"0": False, "false": False, "off": False, "1": True, "true": True, "on": True}.get(
            text.lower()
        )
    return text


def _in_range(option: Option, value: Any) -> bool:
    if option.type in ("int", "float"):
        low, dots, high = option.range.partition("..")
        return not dots or ((not low or float(low) <= value) and (not high or value <= float(high)))
    return option.type != "enum" or value in [word.strip() for word in option.range.split(",")]
