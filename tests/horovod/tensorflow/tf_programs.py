"""Runs a program of programs/ on a rank as if it were the script, and saves its final weights. Called by
test_tf_programs.py on every rank of a living job.

A rank works in a folder of its own, FOLDER/PROGRAM/RANK, so the files there are those of this rank.
"""

import os
import random
import runpy
import sys
from pathlib import Path
from unittest import mock

import numpy as np

PROGRAMS = Path(__file__).with_name("programs")


def watching_sessions(found):
    """A context in which sessions store their variables when they end: programs for TensorFlow 1 do not return them."""
    import tensorflow.compat.v1 as tf

    class Look(tf.train.SessionRunHook):
        def begin(self):
            self.variables = {variable.op.name: variable for variable in tf.trainable_variables()}
            self.step = tf.train.get_global_step()

        def end(self, session):
            found["weights"], found["step"] = session.run([self.variables, self.step])

    plain = tf.train.MonitoredTrainingSession

    def watched(*args, hooks=(), **kwargs):
        return plain(*args, hooks=[*hooks, Look()], **kwargs)

    return mock.patch.object(tf.train, "MonitoredTrainingSession", watched)


def run(name, folder):
    """Run one program; its variables go to FOLDER/PROGRAM-RANK.npz."""
    if str(PROGRAMS) not in sys.path:
        sys.path.insert(0, str(PROGRAMS))
    import tensorflow as tf

    rank = os.environ.get("HOROVOD_RANK", "0")
    folder = Path(folder)
    own = folder / name / rank
    own.mkdir(parents=True, exist_ok=True)
    os.chdir(own)
    # Ranks begin with different weights, so that only a broadcast can make them equal.
    random.seed(int(rank))
    np.random.seed(int(rank))
    path = str(PROGRAMS / f"{name}.py")
    if name.startswith("tf1"):
        tf.compat.v1.reset_default_graph()  # another program may have run in this process
        found = {}
        with watching_sessions(found):
            runpy.run_path(path, run_name="__main__")
        saved = dict(found["weights"], step=found["step"])
    else:
        tf.random.set_seed(int(rank))
        left = runpy.run_path(path, run_name="__main__")
        saved = {f"{i:03d}": value for i, value in enumerate(left["model"].get_weights())}
        optimizer = left["opt"] if "opt" in left else left["model"].optimizer
        saved["step"] = np.asarray(optimizer.iterations)
        if "history" in left:
            saved.update({f"history.{key}": value for key, value in left["history"].history.items()})
    np.savez(folder / f"{name}-{rank}.npz", **saved)
