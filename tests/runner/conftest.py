"""horovodrun on this machine."""

import sys

import pytest
from launchers import Launcher

from harness import plain


@pytest.fixture
def launcher(request, tmp_path):
    """horovodrun and the ranks of python() are forked, or interpreters for tests with the marker `interpreters`."""
    marked = request.node.get_closest_marker("interpreters")
    made = Launcher(tmp_path, python=[sys.executable] if marked else plain.python())
    yield made
    made.clean_up()
