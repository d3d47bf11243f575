"""A rank that calls init() once per case and writes the results to rank-N.json.

A case: {"name", "all": variables of every rank, "of": {"1": variables of rank 1}, "argument": init(backend=...),
"set": ProcessSet(backend=...), "device": the type of a tensor that is submitted, "serves": the device types whose
backends are looked for, as at a first tensor}.
"""

import json
import logging
import os
import sys
from pathlib import Path

import numpy as np

import hvd_core as hvd
from hvd_core import _core
from hvd_core._runtime import runtime
from hvd_core.backends._selection import choice, options

RANK = os.environ["HOROVOD_RANK"]


def submit(device):
    """The error of an operation on a tensor of that device. No backend serves the device, so its memory is not read."""
    tensor = _core.TensorRef(4096, (3,), 7, device, 0, None)
    try:
        runtime.engine().allreduce([tensor], [tensor], "x", 0)
    except ValueError as error:
        return str(error)
    return "submitted"


def outcome(case):
    before = dict(os.environ)
    os.environ.update(case.get("all", {}))
    os.environ.update(case.get("of", {}).get(RANK, {}))
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("horovod").addHandler(handler)
    found = {"warned": said}
    try:
        hvd.init(backend=case.get("argument"))
        total = hvd.allreduce(np.full(5, float(RANK)), op=hvd.Sum)
        assert total.tolist() == [sum(range(hvd.size()))] * 5
        if case.get("device"):
            found["device"] = submit(case["device"])
            hvd.barrier()  # shutdown() ends the job for the other rank too
        for device in case.get("serves", ()):
            runtime.engine().serves(device)
        made = hvd.backend_report()
        found["chosen"] = sorted({f"{r.device}: {r.backend} [{r.source}]" for r in made})
        found["note"] = made.note
        if case.get("set"):
            hvd.add_process_set(hvd.ProcessSet([0], backend=case["set"]))
        found["env"] = {k: v for k, v in os.environ.items() if k not in before}
    except (hvd.HorovodInternalError, RuntimeError, ValueError) as error:
        found["error"], found["text"] = type(error).__name__, str(error)
    hvd.shutdown()
    logging.getLogger("horovod").removeHandler(handler)
    os.environ.clear()
    os.environ.update(before)
    choice._warned.clear()
    options._handed_on.clear()
    return found


cases = json.loads(Path(sys.argv[1]).read_text())
results = {case["name"]: outcome(case) for case in cases}
Path(sys.argv[1]).with_name(f"rank-{RANK}.json").write_text(json.dumps(results))
