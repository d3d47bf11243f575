"""TensorFlow in a process in which horovod.tensorflow, or its compiled parts, are missing.

The first test needs a process that has not loaded the compiled parts; the others come after it.
"""

import importlib.util

import pytest

from harness.checks import run_with
from tf_without_horovod import WITHOUT_HOROVOD

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None,
    reason="TensorFlow is not installed; `make test` does that",
)


@pytest.mark.timeout(700)
def test_models_load_where_horovod_cannot_be_imported(tmp_path):
    """Models that were trained with Horovod are loaded and used without Horovod."""
    run_with("tensorflow", 2, "tensorflow/inference_training.py::train", str(tmp_path))
    function = "tensorflow/tf_without_horovod.py::load_where_horovod_is_absent"
    loaded = run_with(
        "tensorflow", 1, function, str(tmp_path), init=None, process_env=WITHOUT_HOROVOD, timeout=280
    )
    assert loaded.results == [[]]


def errors(function):
    """What a function of tf_without_horovod.py has found."""
    place = f"tensorflow/tf_without_horovod.py::{function}"
    return run_with("tensorflow", 1, place, init=None, process_env=WITHOUT_HOROVOD, timeout=280).results[0]


def test_import_and_calls_where_the_engine_is_missing():
    found = errors("errors_without_the_engine")
    assert set(found) == {"init", "allreduce", "allreduce of text", "allgather", "size_op", "in a function"}
    for kind, text in found.values():
        assert kind in ("ImportError", "ModuleNotFoundError") and "hvd_core._core" in text, (kind, text)


def test_import_and_calls_where_the_operations_cannot_be_loaded():
    found = errors("errors_without_the_operations")
    assert "init" not in found  # The engine is there, for other frameworks.
    for name in ("allreduce", "allgather", "size_op", "in a function"):
        kind, text = found[name]
        assert kind == "ImportError" and "libhvd_tf.so" in text and "TF_Something" in text, (kind, text)
