"""HOROVOD_CHECK_CONSISTENCY=1 with Keras on PyTorch. On TensorFlow: test_tf_initial_weights.py."""

import keras_initial_weights
from harness import run_on_ranks
from harness.installed import need
from keras_support import options_of

need("torch")


def output_of(with_callback):
    env = {"HOROVOD_CHECK_CONSISTENCY": "1"}
    return run_on_ranks(2, keras_initial_weights.fit, with_callback, env=env, **options_of("torch")).output


def test_without_callback():
    text = output_of(False)
    assert text.count("began to train with different weights: 1 of 2 parameters") == 1
    assert "dense/kernel: one value on rank 0; another on rank 1\n" in text
    assert "callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)]" in text


def test_with_callback():
    assert "weights" not in output_of(True)
