"""The programs on Horovod's pages about TensorFlow and Keras (programs/) train on two ranks, with another data set. Ranks
begin with different weights and end with equal ones; only rank 0 writes files.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

import tf_programs
from harness import run_on_ranks
from harness.installed import need

need("sklearn", reason="the programs' data set comes with scikit-learn")
sys.path.insert(0, str(Path(__file__).with_name("programs")))
import handwritten  # noqa: E402

RANKS = 2
# Programs for TensorFlow 1 switch their process to its behaviour.
TENSORFLOW_1 = {"HVD_TEST_TENSORFLOW_1": "1"}

pytestmark = pytest.mark.timeout(500)


def run(folder, program, **process_env):
    """Runs a program on living ranks, which save its weights in the folder; its output."""
    done = run_on_ranks(
        RANKS,
        tf_programs.run,
        program,
        str(folder),
        framework="tensorflow",
        init=None,
        process_env=process_env,
    )
    return done.output


def weights(folder, program):
    """The final weights in order, checked to be the same on all ranks, and the other saved arrays."""
    ranks = [dict(np.load(folder / f"{program}-{rank}.npz")) for rank in range(RANKS)]
    names = [name for name in ranks[0] if name != "step" and not name.startswith("history.")]
    assert names
    for name in names:
        for rank, other in enumerate(ranks[1:], 1):
            assert np.array_equal(ranks[0][name], other[name]), f"{program}: {name} of ranks 0 and {rank}"
    return [ranks[0][name] for name in names], ranks[0]


def files(folder, program, rank):
    return sorted(path.name for path in (folder / program / str(rank)).rglob("*") if path.is_file())


def convolution(x, kernel, bias):
    """A convolution with padding 'valid', then relu: (N, H, W, C) float64."""
    high, wide = x.shape[1] - kernel.shape[0] + 1, x.shape[2] - kernel.shape[1] + 1
    total = sum(
        x[:, i : i + high, j : j + wide] @ kernel[i, j]
        for i in range(kernel.shape[0])
        for j in range(kernel.shape[1])
    )
    return np.maximum(total + bias, 0)


def accuracy_of_network(weights):
    """The accuracy of the programs' network on the test set, computed from the weights with NumPy."""
    _, (images, labels) = handwritten.load_data()
    x = images[..., np.newaxis] / 255.0
    w1, b1, w2, b2, w3, b3 = (np.float64(value) for value in weights)
    x = convolution(x, w1, b1)
    x = x.reshape(len(x), x.shape[1] // 2, 2, x.shape[2] // 2, 2, -1).max(axis=(2, 4)).reshape(len(x), -1)
    return (((np.maximum(x @ w2 + b2, 0) @ w3 + b3).argmax(1)) == labels).mean()


def test_monitored_session_of_tensorflow_1(tmp_path):
    run(tmp_path, "tf1_monitored_session", **TENSORFLOW_1)
    found, saved = weights(tmp_path, "tf1_monitored_session")
    assert saved["step"] == 500 // RANKS
    _, (images, labels) = handwritten.load_data()
    hidden_bias, hidden, out_bias, out = (
        saved[name] for name in ("hidden/bias", "hidden/weights", "out/bias", "out/weights")
    )
    logits = np.maximum(images.reshape(-1, 64) / 255.0 @ hidden + hidden_bias, 0) @ out + out_bias
    assert (logits.argmax(1) == labels).mean() >= 0.85 and len(found) == 4
    assert "checkpoint" in files(tmp_path, "tf1_monitored_session", 0)
    assert files(tmp_path, "tf1_monitored_session", 1) == []


def test_keras_tutorial_of_tensorflow_2(tmp_path):
    folder, output = tmp_path, run(tmp_path, "tf2_keras_tutorial")
    found, saved = weights(folder, "tf2_keras_tutorial")
    assert saved["step"] == 4 * (120 // RANKS)
    assert accuracy_of_network(found) >= 0.9
    assert files(folder, "tf2_keras_tutorial", 0) == [f"checkpoint-{epoch}.h5" for epoch in range(1, 5)]
    assert files(folder, "tf2_keras_tutorial", 1) == []
    assert "finished gradual learning rate warmup to 0.002" in output


def test_gradient_tape_of_tensorflow_2(tmp_path):
    folder, output = tmp_path, run(tmp_path, "tf2_gradient_tape")
    found, saved = weights(folder, "tf2_gradient_tape")
    assert saved["step"] == 300 // RANKS
    assert accuracy_of_network(found) >= 0.9
    assert "checkpoint" in files(folder, "tf2_gradient_tape", 0)
    assert files(folder, "tf2_gradient_tape", 1) == []
    assert "Step #100" in output and "Step #200" not in output


@pytest.fixture(scope="module")
def schedule(tmp_path_factory):
    """The folder in which keras_schedule has run, and its output."""
    folder = tmp_path_factory.mktemp("keras-schedule")
    return folder, run(folder, "keras_schedule")


def test_keras_with_warmup_and_schedule(schedule):
    folder, output = schedule
    found, saved = weights(folder, "keras_schedule")
    assert accuracy_of_network(found) >= 0.85
    # The rate rises from that of one process, 1, to that of two at the end of the warm-up; then the schedule sets it.
    rates = saved["history.lr" if "history.lr" in saved else "history.learning_rate"]
    np.testing.assert_allclose(rates[1:], [2.0, 2.0, 0.2, 0.02], rtol=1e-2)
    assert 1.0 < rates[0] < 2.0
    assert files(folder, "keras_schedule", 0) == [f"checkpoint-{epoch}.h5" for epoch in range(1, 6)]
    assert files(folder, "keras_schedule", 1) == []
    assert "Test accuracy:" in output


@pytest.mark.slow
def test_keras_goes_on_from_a_checkpoint_of_rank_0(schedule):
    """Rank 0 has the files of the first run without the last two; the other ranks have only the values that it sends."""
    folder, _ = schedule
    before = dict(np.load(folder / "keras_schedule-0.npz"))
    for epoch in (4, 5):
        (folder / "keras_schedule" / "0" / f"checkpoint-{epoch}.h5").unlink()
    output = run(folder, "keras_schedule")
    found, saved = weights(folder, "keras_schedule")
    assert len(saved["history.loss"]) == 2 and len(before["history.loss"]) == 5
    assert accuracy_of_network(found) >= 0.85
    np.testing.assert_allclose(
        saved["history.lr" if "history.lr" in saved else "history.learning_rate"], [0.2, 0.02], rtol=1e-2
    )
    assert "Epoch 4/5" in output
