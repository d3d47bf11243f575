"""One rank of test_frontend_ranks.py: calls the check_* functions of the named modules, and prints those that have
passed, and those that were skipped with the reason. The first failure ends the job.
"""

import importlib
import sys
import traceback
from pathlib import Path

import frontend_job  # noqa: F401 (init() comes first)
import hvd_core as hvd
from hvd_core._runtime import runtime

sys.path.insert(1, str(Path(__file__).parents[1]))
from harness.rank import Skipped

for module in sys.argv[1:]:
    for name, check in list(vars(importlib.import_module(module)).items()):
        if not name.startswith("check_"):
            continue
        try:
            check()
        except Skipped as reason:
            print(f"SKIPPED {name}: {reason}", flush=True)
            continue
        except BaseException:
            print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
            runtime.engine().abort(f"{name} failed on rank {hvd.rank()}")
            sys.exit(1)
        print(f"PASSED {name}", flush=True)
hvd.shutdown()
