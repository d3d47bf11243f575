"""Ranks for test_python_engine.py that end in many ways, with a backend in Python. These ranks are
interpreters, so their module does not import pytest.
"""

import sys
import threading
import time

import numpy as np

import hvd_core as hvd
from harness.rank import meet
from hvd_core._runtime import runtime
from star_backend import ChaosBackend


def _late():
    try:
        hvd.allreduce_async(np.ones(9), name="late")
    except hvd.HorovodInternalError:
        pass  # the other rank has ended the job


def _late_and_exits():
    _late()
    time.sleep(0.1)
    sys.exit(0)


def _begins_anew():
    hvd.shutdown()
    hvd.init(backend=ChaosBackend)
    hvd.barrier()


def _leaves_a_thread():
    threading.Thread(target=lambda: [hvd.barrier() for _ in range(2)], daemon=True).start()


def _aborts():
    meet("first")
    time.sleep(1)
    runtime.engine().abort("enough")


ENDINGS = {
    "nothing more": lambda: None,
    "exit": lambda: sys.exit(0),
    "shutdown": lambda: hvd.shutdown(),
    "shutdown and init": _begins_anew,
    "an operation under way": _late,
    "an operation under way and exit": _late_and_exits,
    "a thread that waits": _leaves_a_thread,
    "abort": _aborts,
}


def end_by(ending):
    hvd.init(backend=ChaosBackend)
    hvd.allreduce(np.ones(3), name="first")
    ENDINGS[ending]()
