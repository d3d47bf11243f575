"""A folder on the path for distributions that a test makes."""

import pytest

from announced import hide_installed


@pytest.fixture
def site(tmp_path):
    """The folder, in which no backend is yet; processes that see it run in its parent."""
    folder = tmp_path / "site"
    folder.mkdir()
    hide_installed(folder)
    return folder
