"""Runs an example on a rank as if it were the script, and saves the weights that its main() returns.

python run_example.py FOLDER EXAMPLE [its options]      FOLDER/<rank>.npz

Ranks that stay alive call run().
"""

import os
import runpy
import sys
from unittest import mock

import numpy as np


def run(folder, example, options):
    """`example`: the path of its file; `options`: texts. The weights are saved in FOLDER/<rank>.npz."""
    os.chdir(folder)
    with mock.patch.object(sys, "argv", [example, *options]):
        weights = runpy.run_path(example, run_name="example")["main"]()
    rank = os.environ.get("HOROVOD_RANK", "0")
    np.savez(os.path.join(folder, f"{rank}.npz"), *weights)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], sys.argv[3:])
