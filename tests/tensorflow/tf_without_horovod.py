"""What a process does in which horovod.tensorflow is absent, or cannot be imported as a whole. One process with
TensorFlow serves all of it, as it never loads the library of Horovod's operations.

Run by test_tf_import.py and test_tf_inference.py on one living rank, whose engine is not initialised.
"""

import contextlib
import sys
from pathlib import Path
from unittest import mock

# The variable makes the processes of these tests others than those of the tests with horovod.tensorflow.
WITHOUT_HOROVOD = {"HVD_TEST_WITHOUT_HOROVOD": "1"}
OURS = ("horovod", "hvd_core")


def _is_ours(name):
    return name.split(".")[0] in OURS


@contextlib.contextmanager
def imported_anew():
    """Within the block modules of ours are not imported yet; what the block imports is forgotten afterwards."""
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_ours(name)}
    try:
        yield
    finally:
        for name in list(sys.modules):
            if _is_ours(name):
                del sys.modules[name]
        sys.modules.update(before)


class Absent:
    """A finder of modules for which an import of ours is an error."""

    def find_spec(self, name, path=None, target=None):
        if _is_ours(name):
            raise ImportError(f"{name} is not installed here")


def load_where_horovod_is_absent(folder):
    """Loads what inference_training.py has saved in `folder`. Returns the modules of ours that were imported."""
    assert "libhvd_tf" not in Path("/proc/self/maps").read_text(), "this process has Horovod's operations"
    absent = Absent()
    with imported_anew():
        sys.meta_path.insert(0, absent)
        try:
            import inference_program

            inference_program.main(folder)
            return [name for name in sys.modules if _is_ours(name)]
        finally:
            sys.meta_path.remove(absent)


def errors_of_calls():
    """{call: (class, text)} of the calls that raise, horovod.tensorflow being imported now."""
    import tensorflow as tf

    import horovod.tensorflow as hvd

    found = {}
    for name, call in {
        "init": hvd.init,
        "allreduce": lambda: hvd.allreduce(tf.ones(2)),
        "allgather": lambda: hvd.allgather(tf.ones(2), name="x"),
        "size_op": hvd.size_op,
        "in a function": tf.function(lambda: hvd.broadcast(tf.ones(2), 0), autograph=False),
        "allreduce of text": lambda: hvd.allreduce("text"),
    }.items():
        try:
            call()
        except Exception as error:
            found[name] = (type(error).__name__, str(error))
    if "init" not in found:
        hvd.shutdown()
    return found


def errors_without_the_engine():
    with imported_anew(), _gradients_registered_twice():
        sys.modules["hvd_core._core"] = None  # as if it had not been built
        return errors_of_calls()


def errors_without_the_operations():
    import tensorflow as tf

    def load_op_library(path):  # as of a TensorFlow that lacks something
        raise tf.errors.NotFoundError(None, None, "undefined symbol: TF_Something")

    with (
        imported_anew(),
        _gradients_registered_twice(),
        mock.patch.object(tf, "load_op_library", load_op_library),
    ):
        return errors_of_calls()


@contextlib.contextmanager
def _gradients_registered_twice():
    """TensorFlow takes a gradient once per process; here horovod.tensorflow is imported twice, and calculates none."""
    import tensorflow as tf

    with (
        mock.patch.object(tf, "RegisterGradient", lambda name: lambda function: function),
        mock.patch.object(tf, "no_gradient", lambda name: None),
    ):
        yield
