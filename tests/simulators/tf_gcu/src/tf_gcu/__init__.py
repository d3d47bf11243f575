"""A TensorFlow device named ``GCU`` on the runtime of the (simulated) vendor library. For tests only.

``tf_gcu.load()``, before TensorFlow has used a device, adds it; then ``tf.device("/GCU:0")`` works. (A real plugin lies
in the folder ``tensorflow-plugins`` of site-packages, and ``import tensorflow`` loads it.) The vendor's library is the
file that the communication backend eccl_stub uses: two instances of it would not know each other's streams.
"""

import contextlib
import ctypes
import importlib.util
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DEVICE = "GCU"
LIBRARY_VARIABLE = "HOROVOD_BACKEND_ECCL_STUB_LIBRARY"

_lock = threading.Lock()
_extension: ctypes.CDLL | None = None


class Traffic(NamedTuple):
    """Copies that the vendor's runtime was asked for since the process began. Collectives do not count."""

    to_device: int
    to_host: int
    on_device: int
    to_device_bytes: int
    to_host_bytes: int
    on_device_bytes: int


def vendor_library() -> Path | str | None:
    """The file to open: what the backend's option `library` names, else the simulator in the backend's wheel."""
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        return named
    spec = importlib.util.find_spec("hvd_backend_eccl_stub")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        file = Path(folder) / "lib" / "libeccl_sim.so"
        if file.exists():
            return file
    return None


def load() -> None:
    """Add the device to this process's TensorFlow. A second call does nothing.

    RuntimeError: there is no vendor's library; it has no devices; TensorFlow has used its devices already, or refuses.
    """
    global _extension
    with _lock:
        if _extension is not None:
            return
        vendor = vendor_library()
        if vendor is None:
            raise RuntimeError(
                f"tf_gcu: no vendor library: install hvd-backend-eccl-stub, or set {LIBRARY_VARIABLE}"
            )
        file = Path(__file__).with_name("libtf_gcu.so")
        if not file.exists():
            raise RuntimeError(f"tf_gcu: {file} is not built; pip install tests/simulators/tf_gcu")
        extension = ctypes.CDLL(str(file))
        extension.tf_gcu_open_vendor.restype = extension.tf_gcu_find_tensorflow.restype = ctypes.c_char_p
        said = extension.tf_gcu_open_vendor(os.fsencode(vendor)).decode(errors="replace")
        if said:
            raise RuntimeError(f"tf_gcu: {vendor} cannot be used: {said}")

        import tensorflow as tf
        from tensorflow.python.eager import context
        from tensorflow.python.framework import load_library

        said = extension.tf_gcu_find_tensorflow().decode(errors="replace")
        if said:
            raise RuntimeError(f"tf_gcu: TensorFlow {tf.__version__} cannot be used: {said}")
        if getattr(context.context(), "_initialized", False):
            raise RuntimeError(
                "tf_gcu: TensorFlow has used its devices already; call tf_gcu.load() before that"
            )
        load_library.load_pluggable_device_library(str(file))
        refused = extension.tf_gcu_refused_kernels()
        if refused:
            raise RuntimeError(f"tf_gcu: TensorFlow {tf.__version__} did not take the kernels ({refused})")
        if not tf.config.list_physical_devices(DEVICE):
            raise RuntimeError(f"tf_gcu: {vendor} sees no device")
        _extension = extension


def traffic() -> Traffic:
    """The number of copies so far. Raises RuntimeError before load()."""
    numbers = (ctypes.c_uint64 * 8)()
    if _extension is None or _extension.tf_gcu_traffic(numbers):
        raise RuntimeError("tf_gcu: load() was not called")
    return Traffic(*numbers[1:4], *numbers[5:8])


def queued_kernels() -> int:
    """The number of this device's kernels that were launched and are not done. Raises RuntimeError before load()."""
    if _extension is None:
        raise RuntimeError("tf_gcu: load() was not called")
    return _extension.tf_gcu_queued_kernels()


@contextlib.contextmanager
def held(seconds: float = 20.0) -> Iterator[None]:
    """Within the block this device's kernels do not run, nor the work behind them in their streams. A thread that waits
    for them in the block is released after `seconds`. Raises RuntimeError before load()."""
    if _extension is None:
        raise RuntimeError("tf_gcu: load() was not called")
    release = threading.Timer(seconds, _extension.tf_gcu_hold_kernels, [0])
    release.daemon = True
    _extension.tf_gcu_hold_kernels(1)
    release.start()
    try:
        yield
    finally:
        release.cancel()
        _extension.tf_gcu_hold_kernels(0)
