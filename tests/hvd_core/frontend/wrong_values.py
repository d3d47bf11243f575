"""Values that are wrong for an argument of an operation, by the kind of the argument. Each makes a call fail.

Many of them raise when a front end looks at them, which an ordinary wrong value does not.
"""

import numpy as np

import hvd_core as hvd


class Trouble(Exception):
    """What the hostile values raise."""


def _raises(*_, **__):
    raise Trouble("this value cannot be looked at")


def hostile(*methods, **others):
    """An object whose special methods of these names raise; `others` are further attributes of its class."""
    return type("Hostile", (), {**dict.fromkeys(methods, _raises), **others})()


def _fails_in_the_middle():
    yield 1
    raise Trouble("the second value cannot be made")


class _Attributes:
    """Every attribute raises, also those that a duck-typed check asks for."""

    def __getattr__(self, name):
        raise Trouble(f"no attribute {name}")


class _Unprintable(Exception):
    __str__ = __repr__ = _raises


class Compression:
    """A compressor that cannot compress."""

    @staticmethod
    def compress(tensor):
        raise Trouble("no room to compress")


class Unprintable(Compression):
    """A compressor whose error cannot be printed."""

    @staticmethod
    def compress(tensor):
        raise _Unprintable


# A function makes each value anew, on the rank that needs it.
TENSOR = {
    "an object": object,
    "None": lambda: None,
    "attributes that raise": _Attributes,
    "properties that raise": lambda: hostile(dtype=property(_raises), shape=property(_raises)),
    "conversions that raise": lambda: hostile("__array__", "__dlpack__", "__dlpack_device__", "__float__"),
    "a text": lambda: "text",
}
TENSORS = {
    "a number": lambda: 5,
    "None": lambda: None,
    "an object in a list": lambda: [object()],
    "a generator that raises": _fails_in_the_middle,
    "iteration that raises": lambda: hostile("__iter__"),
    "a hostile value in a list": lambda: [_Attributes()],
}
EMPTY = {"an empty list": list}
OP = {
    "a list": list,
    "no such number": lambda: 17,
    "a text": lambda: "Sum",
    "a hash that raises": lambda: hostile("__hash__"),
    "comparison that raises": lambda: hostile("__eq__", __hash__=lambda self: 0),
    "a repr that raises": lambda: hostile("__repr__", __hash__=lambda self: 77),
}
NAME = {"a name without text": lambda: hostile("__str__", "__repr__", "__format__")}
PROCESS_SET = {
    "a number": lambda: 5,
    "a text": lambda: "all",
    "attributes that raise": _Attributes,
    "a set that is not registered": lambda: hvd.ProcessSet([0, 1]),
}
ROOT_RANK = {
    "None": lambda: None,
    "a text": lambda: "0",
    "many bits": lambda: 2**40,
    "no such rank": lambda: 99,
    "an index that raises": lambda: hostile("__index__", "__int__", "__eq__"),
}
SPLITS = {
    "a number": lambda: 5,
    "fractions": lambda: [0.5, 1.5],
    "a generator that raises": _fails_in_the_middle,
    "a length that raises": lambda: hostile("__len__", "__iter__", "__array__"),
    "an index that raises": lambda: [hostile("__index__", "__int__"), 1],
    "many bits": lambda: [2**70, 1],
    "too few": lambda: [1],
    "negative": lambda: [-1, 1],
}
FACTOR = {
    "a text": lambda: "big",
    "a list": list,
    "a conversion that raises": lambda: hostile("__float__", "__index__", "__eq__"),
}
COMPRESSION = {
    "an object": object,
    "compress() that raises": lambda: Compression,
    "an error without text": lambda: Unprintable,
}
AVERAGE = {"a truth that raises": lambda: hostile("__bool__")}
OBJECT = {
    "pickling that raises": lambda: hostile("__reduce_ex__"),
    "a lock": lambda: __import__("threading").Lock(),
}
ARRAY = {"read-only": lambda: np.broadcast_to(np.float32(1), 4), "every other": lambda: np.ones(8)[::2]}
