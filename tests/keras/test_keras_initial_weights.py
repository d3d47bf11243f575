"""HOROVOD_CHECK_CONSISTENCY=1 with Keras on PyTorch; on TensorFlow: tests/tensorflow/test_tf_initial_weights.py."""

from harness.checks import run_with
from harness.installed import need

need("keras")
need("torch")


def output_of(with_callback):
    options = {"init": "horovod.keras", "env": {"HOROVOD_CHECK_CONSISTENCY": "1"}}
    return run_with("torch", 2, "keras/initial_weights_ranks.py::fit", with_callback, **options).output


def test_without_callback():
    text = output_of(False)
    assert text.count("began to train with different weights: 1 of 2 parameters") == 1
    assert "dense/kernel: one value on rank 0; another on rank 1\n" in text
    assert "callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)]" in text


def test_with_callback():
    assert "weights" not in output_of(True)
