"""A wrong value for each argument of each public function, on one of two ranks: that rank's call raises, the other rank's
call fails at once with the rank and the reason, and the next call of both works.

The tests of test_local_failures.py call fuzz() on both ranks. Its seed chooses from the table of all cases.
"""

import random
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import wrong_values as wrong
from horovod.common.objects import allgather_object, broadcast_object
from hvd_core._runtime import current_job
from hvd_core.errors import HorovodInternalError

# Kinds of arguments that all functions have under the same name.
KINDS = {
    "op": wrong.OP,
    "average": wrong.AVERAGE,
    "name": wrong.NAME,
    "process_set": wrong.PROCESS_SET,
    "root_rank": wrong.ROOT_RANK,
    "splits": wrong.SPLITS,
    "prescale_factor": wrong.FACTOR,
    "postscale_factor": wrong.FACTOR,
    "compression": wrong.COMPRESSION,
}


class Case(NamedTuple):
    function: str
    argument: str
    label: str
    call: Callable[..., Any]
    right: dict[str, Any]
    value: Callable[[], Any]
    takes_name: bool

    def __str__(self) -> str:
        return f"{self.function}({self.argument}={self.label})"


class Function(NamedTuple):
    """A function under test: its call, right arguments, and names of arguments that get the wrong values of their kind
    (`KINDS`) or those that are given here."""

    call: Callable[..., Any]
    right: dict[str, Any]
    arguments: str
    more: dict[str, dict]

    def cases(self, name: str) -> Iterator[Case]:
        kinds = {argument: KINDS[argument] for argument in self.arguments.split()}
        for argument, values in {**kinds, **self.more}.items():
            for label, value in values.items():
                yield Case(name, argument, label, self.call, self.right, value, "name" in kinds)


def _waits(module: Any, function: Callable) -> Callable:
    return lambda *args, **kwargs: module.synchronize(function(*args, **kwargs))


def _functions(module: Any, tensor: Any, tensors: dict[str, str], groups: dict[str, str]) -> dict:
    """The functions of a front end with handles. `tensors` and `groups`: names of functions with their arguments."""
    found = {}
    for name, arguments in (*tensors.items(), *groups.items()):
        function = getattr(module, name)
        one, plain = ("tensors", [tensor, tensor + 0]) if name in groups else ("tensor", tensor)
        wrongs = {**wrong.TENSORS, **wrong.EMPTY} if name in groups else wrong.TENSOR
        right = {one: plain, **({"root_rank": 0} if "root_rank" in arguments else {})}
        call = _waits(module, function) if "_async" in name else function
        found[name] = Function(call, right, arguments, {one: wrongs})
    return found


_REDUCING = "op name process_set prescale_factor postscale_factor"


def of_numpy() -> dict[str, Function]:
    import numpy as np

    import hvd_core as hvd

    x = np.ones((4, 2), np.float32)
    arrays = {**wrong.TENSOR, **wrong.ARRAY}
    moving = "name process_set"
    functions = _functions(
        hvd,
        x,
        {
            "allreduce": _REDUCING,
            "allreduce_": _REDUCING,
            "allreduce_async": _REDUCING,
            "allreduce_async_": _REDUCING,
            "allgather": moving,
            "allgather_async": moving,
            "broadcast": f"root_rank {moving}",
            "broadcast_": f"root_rank {moving}",
            "broadcast_async": f"root_rank {moving}",
            "broadcast_async_": f"root_rank {moving}",
            "alltoall": f"splits {moving}",
            "alltoall_async": f"splits {moving}",
            "reducescatter": _REDUCING,
            "reducescatter_async": _REDUCING,
        },
        {
            "grouped_allreduce": _REDUCING,
            "grouped_allreduce_": _REDUCING,
            "grouped_allreduce_async": _REDUCING,
            "grouped_allreduce_async_": _REDUCING,
            "grouped_allgather": moving,
            "grouped_allgather_async": moving,
            "grouped_broadcast_": f"root_rank {moving}",
            "grouped_alltoall": f"splits {moving}",
            "grouped_reducescatter": _REDUCING,
            "grouped_reducescatter_async": _REDUCING,
        },
    )
    for name in ("allreduce_", "allreduce_async_", "broadcast_", "broadcast_async_"):
        functions[name] = functions[name]._replace(more={"tensor": arrays})
    return {**functions, "barrier": Function(hvd.barrier, {}, "process_set", {}), **_of_objects()}


def _of_objects() -> dict[str, Function]:
    gather = {"obj": wrong.OBJECT}
    return {
        "allgather_object": Function(allgather_object, {"obj": 1}, "name process_set", gather),
        "broadcast_object": Function(broadcast_object, {"obj": 1}, "root_rank name process_set", {}),
    }


def of_torch() -> dict[str, Function]:
    import torch

    import horovod.torch as hvd

    x = torch.ones(4, 2)
    moving, compressed = "name process_set", f"average compression {_REDUCING}"
    scattering = f"compression {_REDUCING}"
    functions = _functions(
        hvd,
        x,
        {
            "allreduce": compressed,
            "allreduce_": f"average {_REDUCING}",
            "allreduce_async": f"average {_REDUCING}",
            "allreduce_async_": f"average {_REDUCING}",
            "allgather": moving,
            "allgather_async": moving,
            "broadcast": f"root_rank {moving}",
            "broadcast_": f"root_rank {moving}",
            "broadcast_async": f"root_rank {moving}",
            "broadcast_async_": f"root_rank {moving}",
            "alltoall": f"splits {moving}",
            "alltoall_async": f"splits {moving}",
            "reducescatter": scattering,
            "reducescatter_async": _REDUCING,
        },
        {
            "grouped_allreduce": compressed,
            "grouped_allreduce_": f"average {_REDUCING}",
            "grouped_allreduce_async": f"average {_REDUCING}",
            "grouped_allreduce_async_": f"average {_REDUCING}",
            "grouped_allgather": moving,
            "grouped_allgather_async": moving,
            "grouped_reducescatter": scattering,
            "grouped_reducescatter_async": _REDUCING,
        },
    )
    wanting = x.clone().requires_grad_()
    for name in ("allreduce", "allgather", "alltoall", "reducescatter", "broadcast"):
        plain = functions[name]
        right = {**plain.right, "tensor": wanting}
        functions[f"{name} with a gradient"] = plain._replace(right=right, more={})
    sparse = torch.ones(2, 2).to_sparse()
    functions["sparse_allreduce_async"] = Function(
        lambda **kwargs: hvd.sparse_allreduce_async(**kwargs)(),
        {"tensor": sparse, "name": None, "op": hvd.Sum},
        "op process_set",
        {"tensor": wrong.TENSOR},
    )
    model = torch.nn.Linear(2, 1)
    functions["broadcast_parameters"] = Function(
        lambda **kwargs: hvd.broadcast_parameters(**kwargs),
        {"params": model.state_dict(), "root_rank": 0},
        "root_rank",
        {
            "params": {
                "a generator": lambda: model.named_parameters(),
                "a model": lambda: model,
                "wrong entries": lambda: dict.fromkeys(model.state_dict(), "text"),
            }
        },
    )
    functions["broadcast_optimizer_state"] = Function(
        hvd.broadcast_optimizer_state,
        {"optimizer": torch.optim.SGD(model.parameters(), 0.1), "root_rank": 0},
        "",
        {
            "optimizer": {
                "LBFGS": lambda: torch.optim.LBFGS(model.parameters()),
                "None": lambda: None,
            }
        },
    )
    return {**functions, "barrier": Function(hvd.barrier, {}, "process_set", {}), **_of_objects()}


def of_tensorflow() -> dict[str, Function]:
    import numpy as np
    import tensorflow as tf

    import horovod.keras as keras_face
    import horovod.tensorflow as hvd
    from horovod.tensorflow import mpi_ops

    x = tf.ones([4, 2])
    tensor, tensors = {"tensor": x}, {"tensors": [x, x]}
    a_tensor = {"tensor": {k: v for k, v in wrong.TENSOR.items() if k != "a text"}}
    a_group = {"tensors": {k: v for k, v in wrong.TENSORS.items() if k != "a number"}}
    maybe_empty = {"tensors": {**a_group["tensors"], **wrong.EMPTY}}
    moving = "name process_set"
    factors = "op process_set prescale_factor postscale_factor"
    slices = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([0, 1]), tf.constant([4, 2]))
    not_for_slices = {"op": {str(op): lambda op=op: op for op in (hvd.Min, hvd.Max, hvd.Product, hvd.Adasum)}}
    device = {"device_dense": {"no such device": lambda: "/nonsense:x"}}
    variable = tf.Variable(tf.ones([2]))
    functions = {
        "allreduce": Function(hvd.allreduce, tensor, f"average compression {_REDUCING}", {**a_tensor, **device}),
        "allreduce of slices": Function(
            hvd.allreduce, {"tensor": slices}, "name process_set prescale_factor", not_for_slices
        ),
        "grouped_allreduce": Function(
            hvd.grouped_allreduce, tensors, f"average compression {_REDUCING}", maybe_empty
        ),
        "grouped_allreduce of slices": Function(
            hvd.grouped_allreduce, {"tensors": [slices]}, "prescale_factor", not_for_slices
        ),
        "grouped_allreduce of both": Function(
            hvd.grouped_allreduce, {"tensors": [x, slices]}, "prescale_factor", not_for_slices
        ),
        "_allreduce": Function(mpi_ops._allreduce, tensor, _REDUCING, a_tensor),
        "_grouped_allreduce": Function(mpi_ops._grouped_allreduce, tensors, _REDUCING, maybe_empty),
        "allgather": Function(hvd.allgather, tensor, moving, a_tensor),
        "grouped_allgather": Function(hvd.grouped_allgather, tensors, moving, maybe_empty),
        "broadcast": Function(hvd.broadcast, {**tensor, "root_rank": 0}, f"root_rank {moving}", a_tensor),
        "broadcast_": Function(
            hvd.broadcast_,
            {"variables": [variable], "root_rank": 0},
            f"root_rank {moving}",
            {"variables": {**wrong.TENSORS, **wrong.EMPTY}},
        ),
        "broadcast_variables": Function(
            hvd.broadcast_variables,
            {"variables": [variable], "root_rank": 0},
            "root_rank",
            {"variables": wrong.TENSORS},  # a shorter list is an error on both ranks: test_tf_functions.py
        ),
        "alltoall": Function(hvd.alltoall, tensor, f"splits {moving}", a_tensor),
        "reducescatter": Function(hvd.reducescatter, tensor, f"compression {_REDUCING}", {**a_tensor, **device}),
        "grouped_reducescatter": Function(hvd.grouped_reducescatter, tensors, f"compression {factors}", maybe_empty),
        "barrier": Function(hvd.barrier, {}, "process_set", {}),
    }  # fmt: skip
    value = {"value": np.ones((4, 2), np.float32)}
    a_value = {"value": {k: v for k, v in wrong.TENSOR.items() if k != "a text"}}
    for name, arguments in {
        "allreduce": f"average compression {_REDUCING}",
        "allgather": moving,
        "broadcast": f"root_rank {moving}",
        "reducescatter": f"op {moving}",
    }.items():
        right = {**value, **({"root_rank": 0} if "root_rank" in arguments else {})}
        functions[f"keras {name}"] = Function(getattr(keras_face, name), right, arguments, a_value)
    return {**functions, **_of_objects()}


_TABLES = {"numpy": of_numpy, "torch": of_torch, "tensorflow": of_tensorflow}


def _errors(front_end: str) -> tuple[type[BaseException], ...]:
    if front_end != "tensorflow":
        return (HorovodInternalError,)
    import tensorflow as tf

    return tf.errors.InvalidArgumentError, HorovodInternalError


def _outcome(call: Callable, arguments: dict) -> tuple[str, Any]:
    """(text of the error, class of the error) of a call that has to fail."""
    try:
        call(**arguments)
    except Exception as error:
        try:
            return str(error), type(error)
        except Exception:
            return "its text cannot be read", type(error)
    return "", None


def _reason(text: str) -> str:
    """The reason in the text of an error. TensorFlow's kernels put the operation in front and behind."""
    return re.sub(r"^\{\{.*?\}\} \w+: |\s*\[Op:.*$", "", text)


def fuzz(front_end: str, seed: int, most: int | None = None) -> None:
    """Tries all cases, or so many, in an order that the seed gives."""
    cases = [case for name, function in _TABLES[front_end]().items() for case in function.cases(name)]
    rng = random.Random(seed)
    chosen = rng.sample(cases, len(cases) if most is None else min(most, len(cases)))
    me, expected = current_job.rank(), _errors(front_end)
    warnings.simplefilter("ignore")
    for number, case in enumerate(chosen):
        bad = rng.randrange(2)
        named = case.takes_name and case.argument != "name" and rng.random() < 0.5
        right = {**case.right, **({"name": "n"} if named else {})}
        mine = {**right, case.argument: case.value()} if me == bad else right
        print(f"case {number}: {case}, wrong on rank {bad}", flush=True)  # for the reader of a failure
        text, kind = _outcome(case.call, mine)
        if me == bad and kind is None and case.label in wrong.EMPTY:  # some functions return an empty list
            text, kind = "an empty list", ValueError
        assert kind is not None, f"{case}, wrong on rank {bad}: the call of rank {me} did not fail"
        assert me == bad or issubclass(kind, expected), f"{case}: {kind} {text}"
        # The next calls work.
        texts = allgather_object((text, kind.__name__), name=f"fuzz.{number}")
        case.call(**right)
        heard, reason = texts[1 - bad][0], _reason(texts[bad][0])
        assert f"failed before it was submitted on rank {bad}" in heard, f"{case}: {heard}"
        assert reason in heard, f"{case}: {reason!r} / {heard!r}"
