"""The program of each rank of a test job: runs the checks of some modules, one after the other. Started by
keras_launch.py."""

import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path

import hvd_core
from keras_launch import checks_of
from keras_support import hvd


def meet() -> None:
    """Wait until all ranks have ended a check: the next check may begin with a shutdown(), which ends the job for all."""
    if hvd_core.is_initialized():
        hvd_core.barrier()


def run(module: str, report) -> None:
    """Run all checks of a module. The first check that fails ends the process."""
    checks = importlib.import_module(module)
    for name in checks_of(module):
        report.write(json.dumps([f"{module}.{name}", "started, not finished"]) + "\n")
        begun = time.perf_counter()
        try:
            getattr(checks, name)()
        except BaseException:
            report.write(json.dumps([f"{module}.{name}", traceback.format_exc()]) + "\n")
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)  # other ranks may wait for this rank, so an orderly shutdown would wait as well
        report.write(json.dumps([f"{module}.{name}", "ok"]) + "\n")
        meet()
        if os.environ.get("HVD_TEST_KERAS_TIMES") and os.environ["HOROVOD_RANK"] == "0":
            print(f"{time.perf_counter() - begun:6.2f} s {module}.{name}", flush=True)


def main() -> int:
    folder, *modules = sys.argv[1:]
    with open(Path(folder) / f"{os.environ.get('HOROVOD_RANK', '0')}.jsonl", "w", buffering=1) as report:
        for module in modules:
            hvd.init(process_sets="dynamic")  # each module begins with a new engine
            run(module, report)
            hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
