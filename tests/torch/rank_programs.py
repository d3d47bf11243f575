"""Runs the programs of programs/ one after the other in one job, each as if it were the script: starting torch for each
would cost seconds. Started by test_torch_programs.py: FOLDER PROGRAM..."""

import runpy
import sys
from pathlib import Path

folder, *programs = sys.argv[1:]
for name in programs:
    path = Path(__file__).with_name("programs") / f"{name}.py"
    sys.argv = [str(path), "--dtype", "float64", "--out", f"{folder}/{name}.pt"]
    runpy.run_path(str(path), run_name="__main__")
