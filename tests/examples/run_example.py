"""Runs an example on a rank as if it were the script, and saves the weights that its main() returns.

python run_example.py FOLDER EXAMPLE [its options]      FOLDER/<rank>.npz
"""

import os
import runpy
import sys

import numpy as np

folder, example, *options = sys.argv[1:]
sys.argv = [example, *options]
weights = runpy.run_path(example, run_name="example")["main"]()
rank = os.environ.get("HOROVOD_RANK", "0")
np.savez(os.path.join(folder, f"{rank}.npz"), *weights)
