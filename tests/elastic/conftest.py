"""horovodrun on this machine, forked."""

import pytest
from launchers import Launcher

from harness import plain


@pytest.fixture
def launcher(tmp_path):
    made = Launcher(tmp_path, python=plain.python())
    yield made
    made.clean_up()
