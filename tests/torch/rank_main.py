"""What each rank of a test job runs: the checks of one module, one after the other. Started by launch.py."""

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

import torch

import horovod.torch as hvd
from launch import checks_of


def main() -> int:
    module, folder = sys.argv[1:]
    torch.set_num_threads(1)
    hvd.init()
    checks = importlib.import_module(module)
    with open(Path(folder) / f"{hvd.rank()}.jsonl", "w", buffering=1) as report:
        for name in checks_of(module):
            report.write(json.dumps([name, "started, not finished"]) + "\n")
            try:
                getattr(checks, name)()
            except BaseException:
                report.write(json.dumps([name, traceback.format_exc()]) + "\n")
                traceback.print_exc()
                sys.stderr.flush()
                # The others may wait for this rank: no use in a friendly goodbye.
                os._exit(1)
            report.write(json.dumps([name, "ok"]) + "\n")
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
