"""HOROVOD_CHECK_CONSISTENCY=1: a training with TensorFlow or Keras that lacks the first broadcast says so."""

import pytest

import tf_initial_weights
from harness import run_on_ranks


def output_of(function, *arguments):
    env = {"HOROVOD_CHECK_CONSISTENCY": "1"}
    return run_on_ranks(2, function, *arguments, framework="tensorflow", env=env).output


@pytest.mark.parametrize("kind", ["eager", "graph", "xla", "groups"])
def test_tape_without_broadcast(kind):
    text = output_of(tf_initial_weights.without_broadcast, kind)
    assert text.count("began to train with different weights: 1 of 2 parameters") == 1
    assert "\n  kernel:0: one value on rank 0; another on rank 1\n" in text
    assert "    hvd.broadcast_variables(model.variables, root_rank=0)\n" in text


@pytest.mark.parametrize("as_graph", [False, True])
@pytest.mark.parametrize("name", ["broadcast_first", "broadcast_after_the_first_step"])
def test_tape_with_broadcast(name, as_graph):
    assert "weights" not in output_of(getattr(tf_initial_weights, name), as_graph)


def test_local_source_is_not_compared():
    assert "weights" not in output_of(tf_initial_weights.local_source)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_keras_without_callback(jit_compile):
    text = output_of(tf_initial_weights.keras_fit, False, jit_compile)
    assert text.count("began to train with different weights: 1 of 2 parameters") == 1
    assert "dense/kernel" in text
    assert "callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)]" in text


def test_keras_with_callback():
    assert "weights" not in output_of(tf_initial_weights.keras_fit, True)


def test_keras_local_variables_are_not_compared():
    assert "weights" not in output_of(tf_initial_weights.keras_local_layer)
