"""Copies of a state's values: in memory, as bytes for other ranks, and in files.

A value may refer to objects that a copy must not double: the model, the optimizer, the state itself. Copies refer to the
same objects, and on another rank to that rank's. One thread of a rank calls all of this.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from horovod.common.objects import Pickler

__all__ = ["ATOMS", "Sent", "copied", "has_state", "load", "save", "unpacked"]

# Types of values that need no copy, and refer to nothing.
ATOMS = (bool, int, float, complex, str, bytes, type(None))

_WAY_OUT = (
    "Keep it outside of the state, or give its class the methods state_dict() and load_state_dict(): then it stays the "
    "same object, and its state is saved and restored."
)

# Objects that stay as they are, by names that are equal on all ranks.
References = Callable[[], Mapping[str, Any]]


def has_state(value: Any) -> bool:
    """Whether a value is saved and restored through its own methods."""
    kind = type(value)
    return callable(getattr(kind, "state_dict", None)) and callable(getattr(kind, "load_state_dict", None))


def copied(values: dict[str, Any], references: References) -> dict[str, Any]:
    """A deep copy of named values.

    Raises:
        TypeError: a value cannot be copied; the text names it.
    """
    if all(type(value) in ATOMS for value in values.values()):
        return dict(values)
    kept = list(references().values())
    try:
        return copy.deepcopy(values, _memo(kept))
    except Exception as error:
        name = _first_that_fails(values, lambda value: copy.deepcopy(value, _memo(kept)))
        raise TypeError(
            f"The value {name!r} of the state cannot be copied ({type(error).__name__}: {error}). {_WAY_OUT}"
        ) from error


def _memo(kept: list) -> dict[int, Any]:
    return {id(value): value for value in kept}


def _first_that_fails(values: dict[str, Any], function: Callable[[Any], Any]) -> str:
    for name, value in values.items():
        try:
            function(value)
        except Exception:
            return name
    return ", ".join(values)


class Sent:
    """Values on the way to other ranks, where they arrive as bytes for unpacked(). The function that sends them pickles
    them, and so reports an error of pickling.

    Args:
        values: by name.
        note: anything that goes with them.
    """

    def __init__(self, values: dict[str, Any], note: Any, references: References) -> None:
        self._values, self._note, self._references = values, note, references

    def __reduce__(self) -> tuple:
        return bytes, (self._packed(),)

    def _packed(self) -> bytes:
        try:
            return _packed((self._values, self._note), self._references)
        except Exception as error:
            name = _first_that_fails(self._values, lambda value: _packed(value, self._references))
            raise TypeError(
                f"The value {name!r} of the state cannot be sent to other ranks ({type(error).__name__}: {error}). "
                f"{_WAY_OUT}"
            ) from error


def _packed(value: Any, references: References) -> bytes:
    file = io.BytesIO()
    save(value, file, references, Pickler)
    return file.getvalue()


def unpacked(data: bytes, references: References) -> tuple[dict[str, Any], Any]:
    """The values that another rank has sent, and the note."""
    return load(io.BytesIO(data), references)


def save(value: Any, file: Any, references: References, pickler: type = pickle.Pickler) -> None:
    """Pickle a value into a file, with the names of the objects that it refers to."""
    names = {id(kept): name for name, kept in references().items()}

    class WithReferences(pickler):  # type: ignore[misc, valid-type]
        def persistent_id(self, found: Any) -> str | None:
            return names.get(id(found))

    WithReferences(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)


def load(file: Any, references: References) -> Any:
    """What save() has written. Raises pickle.UnpicklingError if it refers to an object that is not here."""

    class WithReferences(pickle.Unpickler):
        def persistent_load(self, name: str) -> Any:
            try:
                return references()[name]
            except KeyError:
                raise pickle.UnpicklingError(
                    f"it refers to {name!r}, which this state does not have"
                ) from None

    return WithReferences(file).load()
