"""Options of a backend written in Python: declared and read like those of a library.

The variable of an option is HOROVOD_BACKEND_<NAME>_<OPTION>. Declared options appear in the table's schema, so that tools
show them and a misspelt variable is an error.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

from hvd_core.backends import option_types
from hvd_core.backends.messages import option_variable


@dataclass(frozen=True)
class Option:
    """``type``: one of option_types.TYPES. ``range``: "0..100" for numbers and sizes, "a, b, c" for an enum; for people
    otherwise. Raises ValueError for an unknown type, and for a ``fallback`` that is no value of the type."""

    name: str
    type: str
    fallback: str
    range: str
    doc: str

    def __post_init__(self) -> None:
        if self.type not in option_types.TYPES:
            known = ", ".join(option_types.TYPES)
            raise ValueError(f"horovod: option '{self.name}' has the type {self.type!r}; known: {known}.")
        if wanted := option_types.fault(asdict(self), self.fallback):
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
    if wanted := option_types.fault(asdict(option), text):
        raise ValueError(f"horovod: {variable} must be {wanted}, but is {text!r}.")
    return option_types.value(asdict(option), text)
