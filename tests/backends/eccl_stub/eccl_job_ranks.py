"""One rank of test_eccl_engine.py's jobs in which something is missing or a rank dies: LIBRARY gap|kill|none."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "hvd_core/engine"))

import device_face
import hvd_core as hvd
from hvd_core._runtime import runtime


def allreduce(name: str, dtype: str = "float32") -> np.ndarray:
    return face.allreduce(np.ones(3, dtype), name=name, op=hvd.Sum)


side, what = sys.argv[1:]
hvd.init()
device = device_face.Device("gcu", side, True)
device.ordinal = hvd.local_rank()
device.api.device_set(device.ordinal)
device.stream = device.api.device_stream()
face = device_face.DeviceFace(device)
allreduce("first")
if what == "kill":
    # The launcher ends who has not said within a second that it has heard; that may be too short on a busy machine.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if what == "kill" and hvd.rank() == 1:
    # Submitted, so that the others' library waits for it, and held up on the device.
    device.api.device_hold.argtypes = [ctypes.c_void_p]
    device.api.device_hold(device.stream)
    own = face.put(np.ones(3, np.float32))
    runtime.engine().allreduce([own.ref], [own.ref], "second", device_face.OPS[hvd.Sum], 1.0, 1.0, 0)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
try:
    allreduce("second", "int64" if what == "gap" else "float32")
    allreduce("third")
except hvd.HorovodInternalError as error:
    print(type(error).__name__, error, flush=True)
    if what == "kill":
        sys.exit(1)
print("afterwards", allreduce("last"), flush=True)
