"""Loads TensorFlow's operations from ``lib/libhvd_tf.so``, and registers kernels for devices.

The library is not compiled against TensorFlow: it looks up TensorFlow's functions in the process, and reports those that
are missing. Loading registers the operations, once per process. If it fails, this module can still be imported, and each
call of an operation raises ImportError. Any thread that holds the GIL.
"""

import ctypes
import functools
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import tensorflow as tf

import hvd_core
from horovod.common.basics import runtime
from horovod.tensorflow.util import do_not_convert
from hvd_core._frontend import memory

PATH = Path(__file__).parent / "lib" / "libhvd_tf.so"

# Operations that run at any time within their function: only their inputs and outputs order them.
UNORDERED = frozenset(
    (
        *("HorovodAllreduce", "HorovodGroupedAllreduce", "HorovodAllgather", "HorovodGroupedAllgather"),
        *("HorovodBroadcast", "HorovodGroupedBroadcast", "HorovodAlltoall"),
        *("HorovodReducescatter", "HorovodGroupedReducescatter"),
    )
)

_log = logging.getLogger("horovod")
_lock = threading.Lock()
_warned: set[str] = set()


def _load() -> tuple[Any, ctypes.CDLL]:
    """The module of generated functions, and the library's entry points.

    Raises:
        ImportError: the library cannot be used; the message says why.
    """
    if not PATH.exists():
        raise ImportError(
            f"Extension horovod.tensorflow has not been built: {PATH} not found. Reinstall hvd-core; in a source "
            "checkout: cmake --build BUILD_FOLDER --target hvd_tf."
        )
    try:
        # TensorFlow loads it first: it makes functions for the operations that are registered meanwhile.
        operations = tf.load_op_library(str(PATH))
        library = ctypes.CDLL(str(PATH))
    except (tf.errors.OpError, OSError) as error:
        raise ImportError(f"{PATH} cannot be loaded into TensorFlow {tf.__version__}: {error}") from error
    for function in (library.hvd_tf_missing, library.hvd_tf_problems, library.hvd_tf_register_with_xla):
        function.restype = ctypes.c_char_p
    library.hvd_tf_set_engine.argtypes = [ctypes.c_void_p]
    library.hvd_tf_register_device.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    missing = library.hvd_tf_missing().decode()
    if missing:
        raise ImportError(
            f"horovod.tensorflow does not work with TensorFlow {tf.__version__}, which does not have these functions "
            f"of its C API: {missing}. It is made for TensorFlow 2.15 and newer."
        )
    problems = library.hvd_tf_problems().decode().strip()
    if problems:
        raise ImportError(f"TensorFlow {tf.__version__} refused operations of horovod.tensorflow: {problems}")
    runtime()  # Raises ImportError if the engine cannot be loaded.
    library.hvd_tf_set_engine(hvd_core.frontend_table())
    return operations, library


class _Unavailable:
    """Stands for a library that could not be loaded: each of its functions raises ImportError with the reason."""

    def __init__(self, reason: ImportError) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> Any:
        def raise_reason(*_: Any, **__: Any) -> NoReturn:
            raise ImportError(str(self._reason)) from self._reason

        return raise_reason


@functools.cache
def let_run_unordered() -> None:
    """Tell TensorFlow that our operations need no program order, as it decides for its own collectives. Called before the
    first operation is added to a graph.

    Otherwise, and if kernels hold a thread until their operation is done, they run in the program's order, which is
    correct but slow.
    """
    if not library.hvd_tf_asynchronous():
        _log.warning(
            "horovod: TensorFlow %s does not let kernels finish later as this release knows it. Operations inside "
            "tf.function run one after another.",
            tf.__version__,
        )
        return
    try:
        from tensorflow.python.framework import auto_control_deps

        auto_control_deps.ASYNC_STATEFUL_OPS = frozenset(auto_control_deps.ASYNC_STATEFUL_OPS | UNORDERED)
    except (ImportError, AttributeError, TypeError) as error:
        _log.warning(
            "horovod: TensorFlow %s cannot be told that our operations need no order (%s). Inside tf.function they run "
            "one after another.",
            tf.__version__,
            error,
        )


operations: Any
library: Any
try:
    operations, library = _load()
except ImportError as _error:
    # Importing must work where compiled parts are missing (a documentation build, a Spark driver). Calls raise
    # ImportError.
    operations = library = _Unavailable(_error)


def register_devices() -> None:
    """Register kernels for the device types of this machine, or pass to those that are registered what this job allows.
    Call it in each job while the engine runs, which knows the types that the job's backends serve.

    Raises:
        RuntimeError: TensorFlow refuses the kernels; the message says why.
    """
    types = {device.device_type for device in tf.config.list_physical_devices()} - {"CPU"}
    with _lock:
        for kind in sorted(types):
            device_type = "cuda" if kind == "GPU" else kind.lower()
            refusal = memory.refusal(device_type)
            served = library.hvd_tf_register_device(kind.encode(), refusal.encode())
            if served == -1:
                raise RuntimeError(library.hvd_tf_problems().decode())
            if served == 0 and not refusal and kind not in _warned:
                # One rank warns, as all ranks use the same backends.
                _warned.add(kind)
                _log.log(
                    logging.WARNING if runtime().rank() == 0 else logging.INFO,
                    "horovod: no backend works on memory of TensorFlow's %s devices in this job; TensorFlow copies "
                    "their tensors to host memory and back for each operation.\n  fix: %s, on all hosts",
                    kind,
                    memory.remedy(device_type),
                )


# The gradient functions of the operations, by the operation's type. ``mpi_ops`` fills the table when it is imported;
# ``_xla`` reads it when it makes an operation in a compiled function.
_Function = TypeVar("_Function", bound=Callable[..., Any])

GRADIENTS: dict[str, Callable[..., Any]] = {}


def register_gradient(*kinds: str) -> Callable[[_Function], _Function]:
    """A decorator that makes a function the gradient of the operations `kinds`, in TensorFlow and in GRADIENTS."""

    def register(function: _Function) -> _Function:
        for kind in kinds:
            GRADIENTS[kind] = do_not_convert(function)
            tf.RegisterGradient(kind)(function)
        return function

    return register
