"""What test_tf_without_horovod.py runs in a process in which horovod.tensorflow is missing, or cannot be imported as a
whole. One process with TensorFlow runs all of them, as it never loads the library of Horovod's operations.

That process is one living rank, whose engine is not initialised.
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
    """A context that begins without modules of this project, and forgets those that its block imports."""
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_ours(name)}
    try:
        yield
    finally:
        for name in list(sys.modules):
            if _is_ours(name):
                del sys.modules[name]
        sys.modules.update(before)


class Absent:
    """A finder of modules that refuses to import modules of this project."""

    def find_spec(self, name, path=None, target=None):
        if _is_ours(name):
            raise ImportError(f"{name} is not installed here")


def load_where_horovod_is_absent(folder):
    """Load the models that inference_training.py has saved in `folder`. Returns the imported modules of this project."""
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
    """{call: (class, text)} of the calls that raise, after an import of horovod.tensorflow."""
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
    """TensorFlow accepts a gradient once per process; here horovod.tensorflow is imported twice, and never uses it."""
    import tensorflow as tf

    with (
        mock.patch.object(tf, "RegisterGradient", lambda name: lambda function: function),
        mock.patch.object(tf, "no_gradient", lambda name: None),
    ):
        yield
