"""Loads the handlers of compiled programs from ``lib/libhvd_jax.so`` and registers them with JAX.

The library is not compiled against jaxlib. Before the first program uses it, a probe shows whether the two understand
each other; otherwise operations in compiled programs are callbacks to Python, with one warning. Any thread.
"""

import ctypes
import functools
import logging
import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np

import hvd_core
from horovod.common.basics import runtime

PATH = Path(__file__).parent / "lib" / "libhvd_jax.so"
TARGET = "hvd_jax_collective"

_log = logging.getLogger("horovod")
_once = threading.Lock()

# The attributes of a call, see native/frame.h.
_PROBE = {
    "name": "probe",
    **{key: np.int32(0) for key in ("op", "process_set", "reduce_op", "root_rank")},
    **{key: np.float64(1) for key in ("prescale", "postscale")},
}


def _load() -> None:
    """Load the library and register its handlers. Raises ImportError; the text says why the library cannot be used."""
    if not hasattr(jax, "ffi"):
        raise ImportError("it has no module jax.ffi")
    if not PATH.exists():
        raise ImportError(
            f"{PATH} is not there. Reinstall hvd-core; in a source checkout: cmake --build BUILD_FOLDER --target hvd_jax"
        )
    try:
        library = ctypes.CDLL(str(PATH))
    except OSError as error:
        raise ImportError(str(error)) from error
    runtime()  # Raises ImportError if the engine cannot be loaded.
    library.hvd_jax_set_engine.argtypes = [ctypes.c_void_p]
    library.hvd_jax_set_engine(hvd_core.frontend_table())
    for name in (TARGET, "hvd_jax_probe"):
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), platform="cpu")
    # JAX chooses the device of a program after it is traced, so a program may come to a GPU unforeseen.
    for platform in ("CUDA", "ROCM"):
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(library.hvd_jax_refuse), platform=platform)


def _probe() -> None:
    """Run the handler of the probe in a compiled program. Raises the exception that JAX raises."""
    sent = np.arange(5, dtype=np.float32)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        call = jax.ffi.ffi_call("hvd_jax_probe", jax.ShapeDtypeStruct(sent.shape, sent.dtype))
        received = np.asarray(jax.jit(lambda x: call(x, **_PROBE) + 1)(sent))
    if not np.array_equal(received, sent + 1):
        raise ImportError(f"the probe sent {sent} and received {received}")


def why_callbacks() -> str:
    """The reason why compiled programs call Python in place of the library's handlers; "" if they call the handlers.
    Warns at the first call if there is a reason.

    The probe initialises JAX's devices, so it does not run before it is needed.
    """
    with _once:  # handlers are registered once, also by threads that trace at the same time
        return _why_callbacks()


@functools.cache
def _why_callbacks() -> str:
    reasons: list[Exception] = []

    def try_it() -> None:
        try:
            _load()
            _probe()
        except Exception as error:
            reasons.append(error)

    # A thread of its own, as this one may be tracing a program.
    thread = threading.Thread(target=try_it, name="horovod.jax probe")
    thread.start()
    thread.join()
    if not reasons:
        return ""
    text = f"{reasons[0]}".strip().splitlines()[0][:300]
    _log.warning(
        "horovod: JAX %s cannot call this library's handlers (%s). In compiled programs operations are callbacks to "
        "Python, which are slower and run one after another. JAX 0.6 and newer call the handlers.",
        jax.__version__,
        text,
    )
    return text


def ffi_call(shapes: list[jax.ShapeDtypeStruct], vmap_method: str) -> Any:
    """A function of arrays and attributes that adds a call of the handler to the program that is being traced."""
    return jax.ffi.ffi_call(TARGET, shapes, vmap_method=vmap_method)
