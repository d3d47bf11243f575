"""MXNet, and its arrays in the form that the engine takes: the address of their memory, without a copy. Any thread.

MXNet computes later, on its own threads. An array is handed to the engine when what MXNet has been given to do with it
so far is done; an error of that work is raised here. Callers wait for the engine before they return, so what MXNet is
given afterwards finds the result.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_core._core import TensorRef
from hvd_core._frontend.operations import DTYPE_NUMBERS, REDUCIBLE, unsupported_text

# MXNet 1.9.1, its last release, uses six names that NumPy 1.24 took away; they are put back before it is imported.

_NAMES = ("bool", "object", "int", "float", "complex", "str")


def load_mxnet() -> Any:
    """The module mxnet.

    Raises:
        ImportError: MXNet is not installed, or NumPy is too new for it. The message says what to install.
    """
    if int(np.__version__.partition(".")[0]) >= 2:
        raise ImportError(
            f"MXNet 1.9.1 does not work with NumPy {np.__version__}. Install it beside an older one: "
            "pip install 'mxnet==1.9.1' 'numpy<2'."
        )
    for name in _NAMES:
        if name not in vars(np):
            setattr(np, name, getattr(builtins, name))
    try:
        import mxnet
    except ImportError as error:
        raise ImportError(
            f"horovod.mxnet needs MXNet, which cannot be imported: {error}. Install it with: "
            "pip install 'mxnet==1.9.1' 'numpy<2'."
        ) from error
    return mxnet


mx = load_mxnet()

_LIB, check_call = mx.base._LIB, mx.base.check_call

if TYPE_CHECKING:  # MXNet has no type information: what this package uses of its classes

    class NDArray:
        shape: tuple[int, ...]
        dtype: Any
        context: Any
        stype: str
        handle: Any

        def asnumpy(self) -> np.ndarray: ...
        def astype(self, dtype: Any) -> NDArray: ...
        def copyto(self, other: NDArray) -> NDArray: ...
        def __setitem__(self, key: Any, value: Any) -> None: ...

    class Parameter:
        name: str
        dtype: Any
        grad_req: str
        _data: Any
        _deferred_init: Any
        _init_impl: Callable[[NDArray, list[Any]], None]

        def list_data(self) -> list[NDArray]: ...
        def list_grad(self) -> list[NDArray]: ...
        def list_ctx(self) -> list[Any]: ...

    class Optimizer:
        def create_state(self, index: Any, weight: Any) -> Any: ...
        def create_state_multi_precision(self, index: Any, weight: Any) -> Any: ...
        def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None: ...
        def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None: ...

    class Trainer:
        _params: list[Parameter]

        def __init__(
            self, params: Any, optimizer: Any, optimizer_params: dict[str, Any] | None, kvstore: Any
        ) -> None: ...

else:
    NDArray = mx.nd.NDArray  # mx.np.ndarray derives from it
    Parameter = mx.gluon.Parameter
    Optimizer = mx.optimizer.Optimizer
    Trainer = mx.gluon.Trainer

# Of mx.Context: pinned and shared memory are the host's too.
_HOST = ("cpu", "cpu_pinned", "cpu_shared")


def _type_name(array: Any) -> str:
    """The name of an array's element type in NumPy; "bfloat16" for MXNet's structure of that name."""
    dtype = np.dtype(array.dtype)
    return str(dtype.names[0] if dtype.names else dtype.name)


def check(array: Any, allowed: frozenset[str]) -> None:
    """Raises ValueError unless `array` is dense, in host memory, and of one of the types `allowed`."""
    if not isinstance(array, NDArray):
        raise ValueError(f"An MXNet NDArray is required, but found {type(array).__name__}: {array!r:.80}.")
    if array.stype != "default":
        raise ValueError(
            f"An array of storage type {array.stype} is not supported. Pass array.tostype('default')."
        )
    if array.context.device_type not in _HOST:
        raise ValueError(
            f"horovod.mxnet works on arrays in host memory, but found one on {array.context}. "
            "Pass array.as_in_context(mx.cpu())."
        )
    name = _type_name(array)
    if name not in allowed:
        raise ValueError(unsupported_text(name, allowed is REDUCIBLE))


def reference(array: NDArray, writes: bool) -> TensorRef:
    """The memory of a checked array, for the engine. Waits for MXNet's work on the array.

    Args:
        writes: the engine writes to it, so reads that MXNet has not done yet are waited for too.

    Raises:
        MXNetError: the work that produces the array has failed.
    """
    if writes:
        check_call(_LIB.MXNDArrayWaitToWrite(array.handle))
    else:
        check_call(_LIB.MXNDArrayWaitToRead(array.handle))
    address = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    return TensorRef(address.value or 0, array.shape, DTYPE_NUMBERS[_type_name(array)], owner=array)


def empty(shape: tuple[int, ...], like: NDArray) -> NDArray:
    """A new array of a shape, with the type, context and class of the array `like`."""
    kind = mx.np if isinstance(like, mx.np.ndarray) else mx.nd
    # Without NumPy's shapes a 0 in a shape means "unknown".
    with contextlib.nullcontext() if all(shape) and shape else mx.util.np_shape(True):
        array: NDArray = kind.empty(shape, dtype=like.dtype, ctx=like.context)
    return array
