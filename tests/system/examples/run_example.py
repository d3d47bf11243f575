"""Runs an example on a rank as if it were the script, and saves the weights that its main() returns.

python run_example.py FOLDER EXAMPLE [its options]      FOLDER/<rank>.npz

Ranks that stay alive call run().
"""

import contextlib
import os
import runpy
import sys
from unittest import mock

import numpy as np


def run(folder, example, options):
    """`example`: the path of its file; `options`: texts. The weights are saved in FOLDER/<rank>.npz."""
    os.chdir(folder)
    if "tensorflow1" in example:
        begin_graph()
    if os.environ.get("KERAS_BACKEND") == "torch":
        # The example runs as on a machine without TensorFlow. Else Keras imports TensorFlow to seed it, in 4 s of
        # processor time. tests/system/versions has both in one process.
        sys.modules.setdefault("tensorflow", None)
    with mock.patch.object(sys, "argv", [example, *options]), threads_as_they_are():
        weights = runpy.run_path(example, run_name="example")["main"]()
    rank = os.environ.get("HOROVOD_RANK", "0")
    np.savez(os.path.join(folder, f"{rank}.npz"), *weights)


def threads_as_they_are():
    """TensorFlow takes a number of threads only before its first use. A process that stays alive has used it, and has the
    number from its environment."""
    tf = sys.modules.get("tensorflow")
    if tf is None:
        return contextlib.nullcontext()
    return mock.patch.object(tf.config.threading, "set_intra_op_parallelism_threads")


def begin_graph():
    """What another program of TensorFlow 1 has left in the default graph of this process is gone."""
    import tensorflow.compat.v1 as tf

    tf.reset_default_graph()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], sys.argv[3:])
