"""One rank of the matrix of test_device_matrix.py: matrix_ranks.py with its tensors on a fake device."""

from __future__ import annotations

import json
import os
import sys

import device_face
import matrix_ranks
from hvd_core._runtime import runtime

job = json.loads(os.environ["DEVICE_JOB"])
routes = {int(coll): (job["type"], job["library"]) for coll in job["routes"]}
device_face.configure([{"type": job["type"], "table": (job["type"], job["library"]), "routes": routes}])
device = device_face.Device(job["type"], job["library"], job["native"])
matrix_ranks.hvd = device_face.DeviceFace(device)
if "counts" in job:
    matrix_ranks.COUNTS, matrix_ranks.LARGE = tuple(job["counts"]), job["large"]
if "dtypes" in job:
    matrix_ranks.DTYPES = [d for d in matrix_ranks.DTYPES if d.name in job["dtypes"]]

code = matrix_ranks.main()
if matrix_ranks.hvd.rank() == 0:
    info = next(x for x in runtime.engine().backend_info() if x["role"] == "device")
    for x in info["served"]:
        print(
            "served:", x["collective"], x["dtype"], x["op"], x["served"], x["backend"], x["how"], flush=True
        )
sys.exit(code)
