"""The checks of ranks_tf_device_ops.py once more, with a new engine in the same process. It uses only the device table of
the backend: the backend for host memory carries out the operations."""

from contextlib import suppress

import horovod.tensorflow as hvd
import ranks_tf_device_ops
from harness.checks import check_names
from harness.rank import Skipped


def check_all_with_operations_on_host_memory():
    hvd.shutdown()
    hvd.init(backend="gcu=shm")
    served, ranks_tf_device_ops.SERVED = ranks_tf_device_ops.SERVED, "STAGED"
    try:
        for name in check_names("tensorflow/ranks_tf_device_ops.py"):
            if name == "check_allreduce_every_type_and_op_in_functions":
                continue  # in functions the kernels are the same
            with suppress(Skipped):  # of another way to serve the device
                getattr(ranks_tf_device_ops, name)()
    finally:
        ranks_tf_device_ops.SERVED = served
