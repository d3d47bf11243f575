"""One rank of test_eccl_engine.py: the engine's matrix of cases on a simulated device, chosen by local_rank().

Of tests/backends/nccl too, whose simulator has the same words for the program's side.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "hvd_core/engine"))

import device_face
import hvd_core as hvd
import matrix_ranks
from hvd_core._runtime import runtime

job = json.loads(os.environ["ECCL_JOB"])


class Program(device_face.DeviceFace):
    """The device comes into being after init(), as in Horovod scripts."""

    def __init__(self) -> None:
        self.__dict__["made"] = None

    @property
    def device(self):
        if self.made is None:
            self.__dict__["made"] = device = device_face.Device(job.get("type", "gcu"), job["side"], True)
            device.ordinal = hvd.local_rank()
            device.api.device_set(device.ordinal)
            device.stream = device.api.device_stream()  # on this device
        return self.made


matrix_ranks.hvd = Program()
matrix_ranks.COUNTS, matrix_ranks.LARGE = tuple(job["counts"]), job["large"]
if job["dtypes"]:
    matrix_ranks.DTYPES = [d for d in matrix_ranks.DTYPES if d.name in job["dtypes"]]

code = matrix_ranks.main()
assert matrix_ranks.hvd.device.api.device_current() == hvd.local_rank() or not hvd.is_initialized()
if job["rank_of_report"] == int(os.environ.get("HOROVOD_RANK", -1)):
    for info in runtime.engine().backend_info():
        for x in info.get("served", ()):
            words = (x["collective"], x["dtype"], x["op"], x["served"], x["backend"], x["how"])
            print("served:", *words, flush=True)
sys.exit(code)
