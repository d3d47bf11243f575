"""A backend whose abort does not come back: the job ends all the same, on every rank, and the backend is named."""

import pytest

from test_hanging_backend import outcomes, says_which_call_hangs, train, train_in_the_background

HANGS = "the backend 'hanging' has not returned from abort for 3.0 s"
# By the engine's log, which is read from the processes' standard error.
LOGGED = {"HOROVOD_LOG_LEVEL": "error"}


@pytest.mark.timeout(150)
def test_hanging_abort_is_named_when_the_call_comes_back(capfd):
    """The collective ends with the abort, so the driver goes on, while the abort itself never ends."""
    texts = outcomes(train, "collective,abort", "abort", **LOGGED)
    for text in texts:
        assert says_which_call_hangs(text), text
    assert f", {HANGS} when the job was ended" in texts[1], texts[1]
    assert f"{HANGS}; the engine leaves its communicators as they are" in capfd.readouterr().err


@pytest.mark.timeout(150)
def test_hanging_abort_does_not_keep_a_stuck_thread_from_being_left_behind(capfd):
    for text in outcomes(train_in_the_background, "collective,abort", **LOGGED):
        assert says_which_call_hangs(text), text
    assert HANGS in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_every_abort_hangs():
    for text in outcomes(train, "never,abort", HVD_TEST_HANG_RANK="all"):
        assert "has not completed an operation" in text or "has not returned from req_" in text, text
        assert HANGS in text, text
