"""The program of each rank of a test job: the checks of some modules, one after the other. Started by launch.py."""

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

import torch

import horovod.torch as hvd
import hvd_core
from launch import checks_of


def meet() -> None:
    """The ranks end a check together: the next one may begin with a shutdown(), which ends the job for all."""
    if hvd_core.is_initialized():
        hvd_core.barrier()


def run(module: str, report) -> None:
    """All checks of a module; the first that fails ends the process."""
    checks = importlib.import_module(module)
    for name in checks_of(module, Path(checks.__file__).parent):
        report.write(json.dumps([f"{module}.{name}", "started, not finished"]) + "\n")
        try:
            getattr(checks, name)()
        except BaseException:
            report.write(json.dumps([f"{module}.{name}", traceback.format_exc()]) + "\n")
            traceback.print_exc()
            sys.stderr.flush()
            # The other ranks may wait for this one, so the process ends without shutdown().
            os._exit(1)
        report.write(json.dumps([f"{module}.{name}", "ok"]) + "\n")
        meet()


def main() -> int:
    folder, *modules = sys.argv[1:]
    torch.set_num_threads(1)
    environment = dict(os.environ)
    # mpirun and horovodrun use different variables for the rank.
    names = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
    number = next((os.environ[name] for name in names if name in os.environ), "0")
    with open(Path(folder) / f"{number}.jsonl", "w", buffering=1) as report:
        for module in modules:
            # Each module finds a new engine, and the environment unchanged.
            hvd.init()
            run(module, report)
            hvd.shutdown()
            os.environ.clear()
            os.environ.update(environment)
    return 0


if __name__ == "__main__":
    sys.exit(main())
