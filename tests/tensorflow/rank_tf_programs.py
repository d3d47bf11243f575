"""Runs programs of programs/ on a rank, one after the other, each as if it were the script, and saves what has become of
their weights. Started by test_tf_programs.py: FOLDER PROGRAM...

A rank works in a folder of its own, FOLDER/PROGRAM/RANK: what is written there was written by this rank.
"""

import os
import random
import runpy
import sys
from pathlib import Path

import numpy as np

PROGRAMS = Path(__file__).with_name("programs")


def watch_sessions(found):
    """Makes sessions hand over their variables when they end: programs for TensorFlow 1 keep them to themselves."""
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

    tf.train.MonitoredTrainingSession = watched


def run(name, folder, rank):
    """Run one program; its variables go to FOLDER/PROGRAM-RANK.npz."""
    own = folder / name / rank
    own.mkdir(parents=True, exist_ok=True)
    os.chdir(own)
    # Ranks begin differently, so that only a broadcast can make them equal.
    random.seed(int(rank))
    np.random.seed(int(rank))
    found = {}
    if name.startswith("tf1"):
        watch_sessions(found)
    left = runpy.run_path(str(PROGRAMS / f"{name}.py"), run_name="__main__")
    if name.startswith("tf1"):
        saved = dict(found["weights"], step=found["step"])
    else:
        saved = {f"{i:03d}": value for i, value in enumerate(left["model"].get_weights())}
        optimizer = left["opt"] if "opt" in left else left["model"].optimizer
        saved["step"] = np.asarray(optimizer.iterations)
        if "history" in left:
            saved.update({f"history.{key}": value for key, value in left["history"].history.items()})
    np.savez(folder / f"{name}-{rank}.npz", **saved)


def main():
    folder, *programs = sys.argv[1:]
    sys.path.insert(0, str(PROGRAMS))
    rank = os.environ.get("HOROVOD_RANK", "0")
    if not programs[0].startswith("tf1"):
        import tensorflow as tf

        tf.random.set_seed(int(rank))
    for name in programs:
        run(name, Path(folder), rank)


if __name__ == "__main__":
    main()
