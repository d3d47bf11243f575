"""The example for MXNet trains to at least 97 % on two processes, which end with equal weights."""

import numpy as np
import pytest

from harness.frameworks import why_no_mxnet
from test_tf_examples import expect_equal_weights, train, written

pytestmark = pytest.mark.skipif(bool(why_no_mxnet()), reason=why_no_mxnet() or "-")


@pytest.mark.timeout(500)
def test_trains(tmp_path):
    # With a larger rate, fewer epochs than the example's own come to the same accuracy.
    options = ("--epochs", "6", "--lr", "0.03")
    output, accuracy = train(tmp_path, "mxnet_digits", *options, framework="mxnet")
    assert accuracy >= 97.0 and "2 process(es)" in output
    assert len(np.load(tmp_path / "0.npz").files) == 8
    expect_equal_weights(tmp_path)
    assert written(tmp_path) == ["mxnet", "mxnet/digits.params"]


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_trains_with_compressed_gradients_and_alone(tmp_path):
    assert train(tmp_path, "mxnet_digits", "--fp16-allreduce", framework="mxnet")[1] >= 96.0
    expect_equal_weights(tmp_path)
    assert "1 process(es)" in train(tmp_path, "mxnet_digits", "--epochs", "2", framework="mxnet", ranks=1)[0]
