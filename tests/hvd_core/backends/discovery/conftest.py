"""A folder on this process's own path, and the real launcher."""

from __future__ import annotations

import pytest

from hvd_core.backends import _discovery
from launchers import Launcher


@pytest.fixture
def site(tmp_path, monkeypatch):
    """An empty folder in which this process looks for distributions."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    _discovery.forget()
    yield folder
    _discovery.forget()


@pytest.fixture
def launcher(tmp_path):
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.clean_up()
