"""horovodrun on this machine."""

import pytest
from launchers import Launcher

from harness import plain


@pytest.fixture
def launcher(tmp_path):
    made = Launcher(tmp_path, python=plain.python())
    yield made
    made.clean_up()


@pytest.fixture
def process_launcher(tmp_path):
    """For tests of what processes do to each other, and of processes that may be left: horovodrun and the ranks of
    python() are interpreters."""
    made = Launcher(tmp_path)
    yield made
    made.clean_up()
