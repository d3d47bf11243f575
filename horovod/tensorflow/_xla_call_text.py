"""The text in a program compiled by XLA from which libhvd_tf.so reads which operation to run.

    hvd1 operation=HorovodAllreduce process_set=0 reduce_op=4 root_rank=0 prescale_factor=1 postscale_factor=1
        tensors=1:3,2>3,2;1:>  name=step/gradient

(in one line). Words are ``key=value``; ``name`` is the last one and extends to the end of the text, as a name may have
spaces. A tensor is ``DTYPE:SHAPE>SHAPE OF THE RESULT``, with TensorFlow's number of the dtype. ``operation`` is the type
of a TensorFlow operation. Numbers of reduce ops are those of hvd/backend_abi.h.

native/xla_call_text.cc reads it. A SavedModel may hold such texts, so another release may read them: a change of the
format is a new VERSION, in both files. Pure Python, no TensorFlow.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

VERSION = 1

# The attributes of a collective that the text has, with the values of operations that do not have them.
_DEFAULTS = {"reduce_op": 0, "root_rank": 0, "prescale_factor": "1", "postscale_factor": "1"}


class TensorText(NamedTuple):
    """A tensor of a call: TensorFlow's number of its dtype, its shape, and the shape of its result."""

    dtype: int
    shape: Sequence[int]
    result_shape: Sequence[int]

    def __str__(self) -> str:
        shape, result_shape = (",".join(map(str, dims)) for dims in (self.shape, self.result_shape))
        return f"{self.dtype}:{shape}>{result_shape}"


def collective_text(operation: str, attributes: Mapping[str, Any], tensors: Sequence[TensorText]) -> str:
    """The text of a collective.

    Args:
        operation: the operation's type, such as "HorovodGroupedAllreduce".
        attributes: as those of the TensorFlow operation, with `process_set_id` and `tensor_name`.
        tensors: at least one.
    """
    values = {key: attributes.get(key, default) for key, default in _DEFAULTS.items()}
    values["tensors"] = ";".join(map(str, tensors))
    values["name"] = attributes["tensor_name"]
    return _text(operation, attributes["process_set_id"], values)


def fact_text(operation: str, process_set_id: int) -> str:
    """The text of an operation that returns a fact about the job, such as "HorovodSize"."""
    return _text(operation, process_set_id, {})


def _text(operation: str, process_set_id: int, values: Mapping[str, Any]) -> str:
    words = {"operation": operation, "process_set": process_set_id, **values}
    return " ".join([f"hvd{VERSION}", *(f"{key}={value}" for key, value in words.items())])
