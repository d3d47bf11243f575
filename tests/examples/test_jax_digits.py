"""The example for JAX trains to at least 97 % on two processes, which end with equal weights."""

import pytest

from harness.frameworks import run_with
from harness.installed import need
from test_tf_examples import EXAMPLES, accuracy_in, expect_equal_weights, written

need("jax", "optax")


def train(folder, ranks, *options):
    words = [str(EXAMPLES / "jax_digits.py"), ["--output", str(folder / "out"), *options]]
    return run_with("jax", ranks, "examples/run_example.py::run", str(folder), *words, init=None).output


@pytest.mark.timeout(500)
def test_trains(tmp_path):
    output = train(tmp_path, 2)
    assert accuracy_in(output) >= 97.0 and "2 process(es)" in output
    expect_equal_weights(tmp_path)
    assert written(tmp_path) == ["jax", "jax/digits.npz"]


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_trains_with_compressed_gradients_and_alone(tmp_path):
    assert accuracy_in(train(tmp_path, 2, "--bf16-allreduce")) >= 96.0
    expect_equal_weights(tmp_path)
    assert "1 process(es)" in train(tmp_path, 1, "--epochs", "2")


@pytest.mark.slow  # tests/keras has the same in small
@pytest.mark.timeout(500)
def test_keras_trains_on_jax(tmp_path):
    need("keras")
    words = [str(EXAMPLES / "keras_digits.py"), ["--output", str(tmp_path / "out"), "--epochs", "10"]]
    output = run_with("jax", 2, "examples/run_example.py::run", str(tmp_path), *words, init=None).output
    assert accuracy_in(output) >= 95.0 and "on jax" in output
    expect_equal_weights(tmp_path)
    assert written(tmp_path) == ["keras", "keras/best.weights.h5"]
