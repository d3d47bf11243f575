"""TensorFlow in a process in which horovod.tensorflow, or its compiled parts, are missing.

The first test needs a process that has not loaded the compiled parts; the others come after it.
"""

import pytest

import inference_training
import tf_without_horovod
from harness import run_on_ranks


def run_alone(function, *arguments):
    """What a function of tf_without_horovod.py returns in a process of these tests."""
    done = run_on_ranks(
        1,
        function,
        *arguments,
        framework="tensorflow",
        init=None,
        process_env=tf_without_horovod.WITHOUT_HOROVOD,
        timeout=280,
    )
    return done.results[0]


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_models_load_where_horovod_cannot_be_imported(tmp_path):
    """Models that were trained with Horovod are loaded and used without Horovod."""
    run_on_ranks(2, inference_training.train, str(tmp_path), framework="tensorflow")
    assert run_alone(tf_without_horovod.load_where_horovod_is_absent, str(tmp_path)) == []


def test_import_and_calls_where_the_engine_is_missing():
    found = run_alone(tf_without_horovod.errors_without_the_engine)
    assert set(found) == {"init", "allreduce", "allreduce of text", "allgather", "size_op", "in a function"}
    for kind, text in found.values():
        assert kind in ("ImportError", "ModuleNotFoundError") and "hvd_core._core" in text, (kind, text)


def test_import_and_calls_where_the_operations_cannot_be_loaded():
    found = run_alone(tf_without_horovod.errors_without_the_operations)
    assert "init" not in found  # The engine is there, for other frameworks.
    for name in ("allreduce", "allgather", "size_op", "in a function"):
        kind, text = found[name]
        assert kind == "ImportError" and "libhvd_tf.so" in text and "TF_Something" in text, (kind, text)
