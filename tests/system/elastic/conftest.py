"""horovodrun on this machine."""

import pytest

from launchers import Launcher


@pytest.fixture
def launcher(tmp_path):
    made = Launcher(tmp_path)
    yield made
    made.clean_up()
