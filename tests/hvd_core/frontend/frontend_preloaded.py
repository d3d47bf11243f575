"""Programs of test_preloaded_modules.py."""

import sys

import numpy as np


def loaded_by_init():
    import hvd_core as hvd
    from horovod.common import _init_hooks

    _init_hooks.preload_modules()
    before = set(sys.modules)
    hvd.init()
    hvd.allreduce(np.ones(2), name="first")
    late = sorted(name for name in set(sys.modules) - before if name.startswith(("hvd_core", "horovod")))
    print(f"loaded late: {late}")
