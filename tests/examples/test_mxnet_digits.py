"""The example for MXNet trains to at least 97 % on two processes, which end with equal weights."""

import numpy as np
import pytest

from harness.frameworks import run_with, why_no_mxnet
from test_tf_examples import EXAMPLES, accuracy_in, expect_equal_weights, written

pytestmark = pytest.mark.skipif(bool(why_no_mxnet()), reason=why_no_mxnet() or "-")


def train(folder, ranks, *options):
    words = [str(EXAMPLES / "mxnet_digits.py"), ["--output", str(folder / "out"), *options]]
    return run_with("mxnet", ranks, "examples/run_example.py::run", str(folder), *words, init=None).output


@pytest.mark.timeout(500)
def test_trains(tmp_path):
    output = train(tmp_path, 2)
    assert accuracy_in(output) >= 97.0 and "2 process(es)" in output
    assert len(np.load(tmp_path / "0.npz").files) == 8
    expect_equal_weights(tmp_path)
    assert written(tmp_path) == ["mxnet", "mxnet/digits.params"]


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_trains_with_compressed_gradients_and_alone(tmp_path):
    assert accuracy_in(train(tmp_path, 2, "--fp16-allreduce")) >= 96.0
    expect_equal_weights(tmp_path)
    output = train(tmp_path, 1, "--epochs", "2")
    assert "1 process(es)" in output
