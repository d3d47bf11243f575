"""Loading of TensorFlow's operations from ``lib/libhvd_tf.so``, and what it is told at run time.

The library is compiled against nothing of TensorFlow; it finds what it needs in the TensorFlow of the process, and
says what is missing. Loading registers the operations, once per process. Where that fails, importing this works all the
same, and what is called raises ImportError. Any thread that holds the GIL.
"""

import ctypes
import logging
import threading
from pathlib import Path
from typing import Any, NoReturn

import tensorflow as tf

import hvd_core
from horovod.common.basics import runtime

PATH = Path(__file__).parent / "lib" / "libhvd_tf.so"

# They run at any time within their function, whatever else it does; results and nothing else order them.
UNORDERED = frozenset(
    (
        *("HorovodAllreduce", "HorovodGroupedAllreduce", "HorovodAllgather", "HorovodGroupedAllgather"),
        *("HorovodBroadcast", "HorovodGroupedBroadcast", "HorovodAlltoall"),
        *("HorovodReducescatter", "HorovodGroupedReducescatter"),
    )
)

_log = logging.getLogger("horovod")
_lock = threading.Lock()
_registered: set[str] = set()


def _load() -> tuple[Any, ctypes.CDLL]:
    """The module of generated functions, and the library's own entry points. ImportError says why there are none."""
    if not PATH.exists():
        raise ImportError(
            f"Extension horovod.tensorflow has not been built: {PATH} not found. Reinstall hvd-core; in a source "
            "checkout: cmake --build BUILD_FOLDER --target hvd_tf."
        )
    try:
        # First by TensorFlow, which notes what operations are registered while it loads.
        operations = tf.load_op_library(str(PATH))
        library = ctypes.CDLL(str(PATH))
    except (tf.errors.OpError, OSError) as error:
        raise ImportError(f"{PATH} cannot be loaded into TensorFlow {tf.__version__}: {error}") from error
    for answers in (library.hvd_tf_missing, library.hvd_tf_problems, library.hvd_tf_register_with_xla):
        answers.restype = ctypes.c_char_p
    library.hvd_tf_set_engine.argtypes = [ctypes.c_void_p]
    library.hvd_tf_register_device.argtypes = [ctypes.c_char_p]
    library.hvd_tf_poison.argtypes = [
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_char_p,
    ]
    missing = library.hvd_tf_missing().decode()
    if missing:
        raise ImportError(
            f"horovod.tensorflow does not work with TensorFlow {tf.__version__}, which does not have these functions "
            f"of its C API: {missing}. It is made for TensorFlow 2.15 and newer."
        )
    problems = library.hvd_tf_problems().decode().strip()
    if problems:
        raise ImportError(f"TensorFlow {tf.__version__} refused operations of horovod.tensorflow: {problems}")
    runtime()  # The engine's library, or the reason why it cannot be loaded.
    library.hvd_tf_set_engine(hvd_core.frontend_table())
    return operations, library


class _Unavailable:
    """Stands for what could not be loaded: whatever is called of it raises ImportError with the reason."""

    def __init__(self, reason: ImportError) -> None:
        self._reason = reason

    def __getattr__(self, name: str) -> Any:
        def explain(*_: Any, **__: Any) -> NoReturn:
            raise ImportError(str(self._reason)) from self._reason

        return explain


def _let_run_unordered() -> None:
    """Tell TensorFlow that program order does not matter to our operations, as it does for its own collectives.

    Without that, or where they hold a thread until they are done, they run in the program's order: right, but slow.
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


try:
    operations, library = _load()
except ImportError as _error:
    # Importing must work where the compiled parts are missing (a documentation build, a driver); calls explain.
    operations = library = _Unavailable(_error)
else:
    _let_run_unordered()


def run_in_parallel(op: tf.Operation) -> None:
    """Let an operation of a function that is being traced run whenever its inputs are there, and run in any case.

    Otherwise TensorFlow would drop it where nobody uses the result, depending on the rank's optimizer settings, and
    start the next round of a loop before it is done.
    """
    manager = getattr(op.graph, "experimental_acd_manager", None)
    if manager is not None and library.hvd_tf_asynchronous():
        manager.run_independently(op)


def register_devices() -> None:
    """Make kernels for the types of devices that this machine has. Needs a running engine, which knows what it serves.

    Raises:
        RuntimeError: TensorFlow refuses them.
    """
    types = {device.device_type for device in tf.config.list_physical_devices()} - {"CPU"}
    with _lock:
        for kind in sorted(types - _registered):
            _registered.add(kind)
            how = library.hvd_tf_register_device(kind.encode())
            if how == -1:
                raise RuntimeError(library.hvd_tf_problems().decode())
            if how == 0:
                # Once for the job: all ranks have agreed on the same backends.
                _log.log(
                    logging.WARNING if runtime().rank() == 0 else logging.INFO,
                    "horovod: no backend works on memory of TensorFlow's %s devices in this job; TensorFlow copies "
                    "their tensors to host memory and back for each operation.",
                    kind,
                )
