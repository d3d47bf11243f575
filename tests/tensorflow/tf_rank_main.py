"""What each rank of a test job runs: the checks of some modules, one after the other. Started by tf_launch.py."""

import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path

import horovod.tensorflow as hvd
import hvd_core
from tf_launch import checks_of


def meet() -> None:
    """The ranks end a check together: the next one may begin with a shutdown(), which ends the job for all."""
    if hvd_core.is_initialized():
        hvd_core.barrier()


def run(module: str, report) -> None:
    """All checks of a module; the first that fails ends the process."""
    checks = importlib.import_module(module)
    for name in checks_of(module, Path(checks.__file__).parent):
        report.write(json.dumps([f"{module}.{name}", "started, not finished"]) + "\n")
        begun = time.perf_counter()
        try:
            getattr(checks, name)()
        except BaseException:
            report.write(json.dumps([f"{module}.{name}", traceback.format_exc()]) + "\n")
            traceback.print_exc()
            sys.stderr.flush()
            # The others may wait for this rank: no use in a friendly goodbye.
            os._exit(1)
        report.write(json.dumps([f"{module}.{name}", "ok"]) + "\n")
        meet()
        if "HVD_TEST_TF_TIMES" in os.environ:
            print(f"{time.perf_counter() - begun:6.2f} s {module}.{name}", flush=True)


def main() -> int:
    folder, *modules = sys.argv[1:]
    environment = dict(os.environ)
    # mpirun has other names for it than horovodrun.
    names = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
    number = next((os.environ[name] for name in names if name in os.environ), "0")
    with open(Path(folder) / f"{number}.jsonl", "w", buffering=1) as report:
        for module in modules:
            # Each finds an engine that has just begun, and the environment as it was.
            hvd.init()
            run(module, report)
            hvd.shutdown()
            os.environ.clear()
            os.environ.update(environment)
    return 0


if __name__ == "__main__":
    sys.exit(main())
