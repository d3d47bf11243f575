"""The example for JAX trains to at least 97 % on two processes, which end with equal weights."""

import pytest

from harness.installed import need
from test_tf_examples import expect_equal_weights, train, written

need("jax", "optax")


@pytest.mark.timeout(500)
def test_trains(tmp_path):
    # With a larger rate, fewer epochs than the example's own come to the same accuracy.
    options = ("--epochs", "6", "--lr", "0.03")
    output, accuracy = train(tmp_path, "jax_digits", *options, framework="jax")
    assert accuracy >= 97.0 and "2 process(es)" in output
    expect_equal_weights(tmp_path)
    assert written(tmp_path) == ["jax", "jax/digits.npz"]


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_trains_with_compressed_gradients_and_alone(tmp_path):
    assert train(tmp_path, "jax_digits", "--bf16-allreduce", framework="jax")[1] >= 96.0
    expect_equal_weights(tmp_path)
    assert "1 process(es)" in train(tmp_path, "jax_digits", "--epochs", "2", framework="jax", ranks=1)[0]


@pytest.mark.slow  # tests/horovod/keras has the same in small
@pytest.mark.timeout(500)
def test_keras_trains_on_jax(tmp_path):
    need("keras")
    output, accuracy = train(tmp_path, "keras_digits", "--epochs", "10", framework="jax")
    assert accuracy >= 95.0 and "on jax" in output
    expect_equal_weights(tmp_path)
    assert written(tmp_path) == ["keras", "keras/best.weights.h5"]
