"""HOROVOD_CHECK_CONSISTENCY=1: a training with TensorFlow or Keras that lacks the first broadcast says so."""

import pytest

from harness.checks import run_with
from harness.installed import need

need("tensorflow")


def output_of(function, *arguments):
    return run_with(
        "tensorflow",
        2,
        f"tensorflow/ranks_tf_initial_weights.py::{function}",
        *arguments,
        env={"HOROVOD_CHECK_CONSISTENCY": "1"},
    ).output


@pytest.mark.parametrize("kind", ["eager", "graph", "xla", "groups"])
def test_tape_without_broadcast(kind):
    text = output_of("without_broadcast", kind)
    assert text.count("began to train with different weights: 1 of 2 parameters") == 1
    assert "\n  kernel:0: one value on rank 0; another on rank 1\n" in text
    assert "    hvd.broadcast_variables(model.variables, root_rank=0)\n" in text


@pytest.mark.parametrize("as_graph", [False, True])
@pytest.mark.parametrize("function", ["broadcast_first", "broadcast_after_the_first_step"])
def test_tape_with_broadcast(function, as_graph):
    assert "weights" not in output_of(function, as_graph)


def test_local_source_is_not_compared():
    assert "weights" not in output_of("local_source")


@pytest.mark.parametrize("jit_compile", [False, True])
def test_keras_without_callback(jit_compile):
    text = output_of("keras_fit", False, jit_compile)
    assert text.count("began to train with different weights: 1 of 2 parameters") == 1
    assert "dense/kernel" in text
    assert "callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)]" in text


def test_keras_with_callback():
    assert "weights" not in output_of("keras_fit", True)


def test_keras_local_variables_are_not_compared():
    assert "weights" not in output_of("keras_local_layer")
