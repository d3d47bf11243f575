"""Names of the original that programs import, and calls before init()."""

import importlib

import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.common import util
from horovod.tensorflow import mpi_ops
from tf_support import raises

pytestmark = pytest.mark.ranks(2, framework="tensorflow")


def test_names_that_programs_import():
    assert mpi_ops.global_process_set is hvd.global_process_set
    assert mpi_ops.add_process_set is hvd.add_process_set
    total = mpi_ops.MPI_LIB.horovod_size(process_set_id=0)
    assert int(total) == hvd.size()
    assert issubclass(hvd._DistributedAdasumOptimizer, tf.compat.v1.train.Optimizer)
    assert hvd._DistributedOptimizer.__module__ == "horovod.tensorflow"
    assert util.gpu_available("tensorflow") is bool(tf.config.list_physical_devices("GPU"))


def test_missing_parts_say_so():
    name = "horovod.tensorflow.data.compute_service"
    raises(ImportError, "is not part of hvd-core", lambda: importlib.import_module(name))


def test_before_init():
    """As in the original: reductions ask for the size first, other operations fail in their kernels."""
    hvd.shutdown()
    tensor = tf.ones(2)
    slices = tf.IndexedSlices(tensor, tf.constant([0, 1]), tf.constant([2]))
    for call in (
        hvd.size,
        lambda: hvd.allreduce(tensor),
        lambda: hvd.allreduce(slices),
        lambda: hvd.grouped_allreduce([tensor]),
        lambda: hvd.broadcast_object(1),
    ):
        raises(ValueError, "Horovod has not been initialized", call)
    for call in (
        hvd.allgather,
        hvd.alltoall,
        hvd.reducescatter,
        lambda t: hvd.broadcast(t, 0),
        tf.function(hvd.allreduce),
    ):
        raises(tf.errors.FailedPreconditionError, "not been initialized", lambda call=call: call(tensor))
    hvd.init()
