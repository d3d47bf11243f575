"""Broadcasting models and Python objects. All ranks call them, one thread each."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from horovod.common.objects import Entry, allgather_object, broadcast_object, prepared, require_same
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.mxnet._arrays import NDArray, Parameter, check, mx
from horovod.mxnet.mpi_ops import broadcast_
from hvd_core._frontend.operations import MOVABLE

__all__ = ["allgather_object", "broadcast_object", "broadcast_parameters"]


def broadcast_parameters(
    params: Mapping[str, Any],
    root_rank: int = 0,
    prefix: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Copy the root's parameters to all ranks, in place.

    A parameter whose shape is not known yet (deferred initialization) is sent when MXNet initializes it, which is in the
    first forward pass; so all ranks must do this pass.

    Args:
        params: `block.collect_params()`, or a dict of arrays, as Module.get_params() returns two. The names, shapes and
            dtypes must be the same on all ranks, which is checked first, as far as the shapes are known.
        root_rank: the GLOBAL rank whose values are sent, also within a process set.
        prefix: begins the names of the operations; needed where several models with deferred parameters of equal names
            are initialized at the same time.
        process_set: the ranks that take part.

    Raises:
        ValueError: `params` is of another type, or an entry cannot be sent. Nothing has been sent then, and the other
            ranks' calls fail. MXNetError: the initializer of a parameter has failed.
        OperationFailedError: the ranks' names, shapes or dtypes differ (the message says where), or another rank has made
            a mistake. HorovodInternalError: a rank is gone.
    """
    call = f"{prefix or ''}broadcast_parameters"
    with prepared(call, process_set):
        if not isinstance(params, Mapping) and not isinstance(params, mx.gluon.ParameterDict):
            raise ValueError(
                f"broadcast_parameters() takes a dict of parameters, but found {type(params).__name__}. Pass "
                "block.collect_params(), or each of the two dicts that Module.get_params() returns."
            )
        if process_set.size() == 1:
            return
        names = [f"{prefix or ''}parameter.{key}" for key in sorted(params.keys())]
        values = [params[key] for key in sorted(params.keys())]
        arrays = [_arrays_of(value, name) for value, name in zip(values, names)]
        entries = [_entry(*entry) for entry in zip(names, values, arrays)]
    require_same("broadcast_parameters()", entries, call, process_set)
    for name, value, found in zip(names, values, arrays):
        if found is None:
            _send_when_initialized(value, name, root_rank, process_set)
        else:
            _send(found, name, root_rank, process_set)


def _entry(name: str, value: Any, arrays: list[NDArray] | None) -> Entry:
    if arrays is None:
        return name, None, np.dtype(value.dtype).name
    return name, arrays[0].shape, np.dtype(arrays[0].dtype).name


def _arrays_of(value: Any, name: str) -> list[NDArray] | None:
    """The arrays of a parameter: one, or one for each of its devices. None if it is not initialized yet.

    Raises ValueError if they cannot be sent.
    """
    if isinstance(value, Parameter):
        if value._data is None and value._deferred_init:
            return None
        arrays = value.list_data()
    else:
        arrays = [value]
    for array in arrays:
        try:
            check(array, MOVABLE)
        except ValueError as error:
            raise ValueError(f"broadcast_parameters(): {name}: {error}") from None
    return arrays


def _send(arrays: list[NDArray], name: str, root_rank: int, process_set: ProcessSet) -> None:
    broadcast_(arrays[0], root_rank, name, process_set=process_set)
    for other in arrays[1:]:
        arrays[0].copyto(other)


def _send_when_initialized(parameter: Parameter, name: str, root_rank: int, process_set: ProcessSet) -> None:
    """Broadcast a parameter once, when MXNet has initialized it."""
    original = parameter._init_impl

    def initialize_and_broadcast(data: NDArray, contexts: list[Any]) -> None:
        # From now on the class's method. It is there already where the parameter waits for two broadcasts.
        parameter.__dict__.pop("_init_impl", None)
        original(data, contexts)
        _send(parameter.list_data(), name, root_rank, process_set)

    parameter._init_impl = initialize_and_broadcast
