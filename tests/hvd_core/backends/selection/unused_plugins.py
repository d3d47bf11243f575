"""Programs of the ranks of test_unused_plugins.py."""

import sys

import numpy as np

import hvd_core as hvd
from hvd_core import _core
from hvd_core._runtime import runtime


def sum_on_the_host():
    hvd.init()
    total = hvd.allreduce(np.ones(3), op=hvd.Sum)
    assert total.tolist() == [hvd.size()] * 3
    hvd.shutdown()
    print("unharmed", flush=True)


def use_widget():
    """Submits a tensor of a device type. No backend serves it, so its memory is not read."""
    hvd.init()
    tensor = _core.TensorRef(4096, (3,), 7, "widget", 0, None)
    for _ in range(2):
        try:
            runtime.engine().allreduce([tensor], [tensor], "x", 0)
        except ValueError as error:
            text = str(error)
    print(text, flush=True)
    sum_on_the_host()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
