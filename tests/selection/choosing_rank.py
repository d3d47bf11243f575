"""A rank that calls init() once per case and leaves what came of it in rank-N.json.

A case: {"name", "all": variables of every rank, "of": {"1": variables of rank 1}, "argument": init(backend=...)}.
"""

import json
import logging
import os
import sys
from pathlib import Path

import numpy as np

import hvd_core as hvd
from hvd_core.backends import options, selection

RANK = os.environ["HOROVOD_RANK"]


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
        made = hvd.backend_report()
        found["chosen"] = sorted({f"{r.device}: {r.backend} [{r.source}]" for r in made})
        found["env"] = {k: v for k, v in os.environ.items() if k not in before}
    except (hvd.HorovodInternalError, RuntimeError, ValueError) as error:
        found["error"], found["text"] = type(error).__name__, str(error)
    hvd.shutdown()
    logging.getLogger("horovod").removeHandler(handler)
    os.environ.clear()
    os.environ.update(before)
    selection._said.clear()
    options._handed_on.clear()
    return found


cases = json.loads(Path(sys.argv[1]).read_text())
results = {case["name"]: outcome(case) for case in cases}
Path(sys.argv[1]).with_name(f"rank-{RANK}.json").write_text(json.dumps(results))
