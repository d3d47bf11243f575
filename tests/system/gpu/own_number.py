"""Runs a program as one rank: python own_number.py PROGRAM [ARGUMENTS]. In the environment {rank} becomes its number,
which no launcher can do; the modules of this folder and of tests/horovod/torch can be imported.
"""

import os
import runpy
import sys
from pathlib import Path

NAMES = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")

number = next((os.environ[name] for name in NAMES if name in os.environ), "0")
for name, value in list(os.environ.items()):
    if "{rank}" in value:
        os.environ[name] = value.replace("{rank}", number)
del sys.argv[0]
HERE = Path(__file__).resolve().parent
sys.path[:1] = [str(Path(sys.argv[0]).resolve().parent), str(HERE), str(HERE.parents[1] / "horovod/torch")]
runpy.run_path(sys.argv[0], run_name="__main__")
