"""Importing horovod.tensorflow where its compiled parts are missing. Each in a process of its own."""

import importlib.util
import json
import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None,
    reason="TensorFlow is not installed; `make test` does that",
)

CALLS = """
    import json
    import tensorflow as tf, horovod.tensorflow as hvd
    said = {}
    for name, call in {
        "init": hvd.init,
        "allreduce": lambda: hvd.allreduce(tf.ones(2)),
        "allgather": lambda: hvd.allgather(tf.ones(2), name="x"),
        "size_op": hvd.size_op,
        "in a function": tf.function(lambda: hvd.broadcast(tf.ones(2), 0)),
        "allreduce of text": lambda: hvd.allreduce("text"),
    }.items():
        try:
            call()
        except Exception as error:
            said[name] = [type(error).__name__, str(error)]
    print(json.dumps(said))
"""


def said(before):
    """What the calls raise after the statements `before`."""
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    code = textwrap.dedent(before) + textwrap.dedent(CALLS)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_import_and_calls_where_the_engine_is_missing():
    found = said("""
        import sys
        sys.modules["hvd_core._core"] = None  # as if it had not been built
    """)
    assert found.pop("allreduce of text")[0] == "ValueError"
    assert set(found) == {"init", "allreduce", "allgather", "size_op", "in a function"}
    for kind, text in found.values():
        assert kind in ("ImportError", "ModuleNotFoundError") and "hvd_core._core" in text, (kind, text)


def test_import_and_calls_where_the_operations_cannot_be_loaded():
    found = said("""
        import tensorflow as tf

        def load_op_library(path):  # as of a TensorFlow that lacks something
            raise tf.errors.NotFoundError(None, None, "undefined symbol: TF_Something")

        tf.load_op_library = load_op_library
    """)
    assert "init" not in found  # The engine is there, for other frameworks.
    for name in ("allreduce", "allgather", "size_op", "in a function"):
        kind, text = found[name]
        assert kind == "ImportError" and "libhvd_tf.so" in text and "TF_Something" in text, (kind, text)
