"""A PyTorch device named ``gcu`` on the runtime of the (simulated) vendor library. For tests only.

``import torch`` loads it by itself (entry point ``torch.backends``); then ``torch.device("gcu:0")`` and
``torch.gcu`` exist. The vendor's library is opened at the first use of a device, and is the file that the
communication backend eccl_stub uses: two instances of it would not know each other's streams.
"""

import ctypes
import importlib.util
import os
import threading
from pathlib import Path

DEVICE = "gcu"
LIBRARY_VARIABLE = "HOROVOD_BACKEND_ECCL_STUB_LIBRARY"

_lock = threading.Lock()
_extension: ctypes.CDLL | None = None
_problem = "the extension has not been loaded"


def load_into_torch() -> None:
    """Make torch know the device. The entry point that ``import torch`` calls; never raises for want of a library.

    An extension that was built for another torch leaves torch as it is; `why_unavailable` says so.
    """
    global _extension, _problem
    with _lock:
        if _extension is not None:
            return
        try:
            extension = ctypes.CDLL(str(Path(__file__).with_name("libtorch_gcu.so")))
        except OSError as error:
            _problem = f"libtorch_gcu.so does not fit this torch; build it again. {error}"
            return
        extension.torch_gcu_open.restype = ctypes.c_char_p
        extension.torch_gcu_set_opener(_opener)
        _extension = extension
        _problem = ""

    import torch

    from torch_gcu import device_module

    torch.utils.rename_privateuse1_backend(DEVICE)
    torch._register_device_module(DEVICE, device_module)
    torch.utils.generate_methods_for_privateuse1_backend()


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


def why_unavailable() -> str:
    """Empty if there are devices; else the reason. Opens the vendor's library."""
    global _problem
    with _lock:
        if _extension is None:
            return _problem
        file = vendor_library()
        if file is None:
            return f"no vendor library: install hvd-backend-eccl-stub, or set {LIBRARY_VARIABLE}"
        said = _extension.torch_gcu_open(os.fsencode(file)).decode(errors="replace")
        if said:
            return f"{file} cannot be used: {said}"
        if _extension.torch_gcu_forked():
            return "a forked process cannot use the device of its parent"
        return ""


# For the first use of a device that did not come through torch.gcu; kept alive here.
_opener = ctypes.CFUNCTYPE(None)(lambda: why_unavailable() and None)


def extension() -> ctypes.CDLL:
    """The loaded extension. Raises RuntimeError, with the reason, if it is not loaded."""
    if _extension is None:
        raise RuntimeError(f"torch_gcu: {_problem}")
    return _extension
