"""A folder on this process's own path, and the real launcher, forked."""

from __future__ import annotations

import pytest
from launchers import Launcher, program_words

from harness import plain
from hvd_core.backends import _discovery


@pytest.fixture
def site(tmp_path, monkeypatch):
    """An empty folder in which this process looks for distributions."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    _discovery.forget()
    yield folder
    _discovery.forget()


class WithNewRanks(Launcher):
    """horovodrun is forked. The ranks of python() are interpreters: they tell which modules they have imported. Those of
    forked() are forks, for tests that do not ask for modules."""

    def python(self, count, program, *words, **options):
        return self.run("-np", count, *words, *program_words(program), **options)

    def forked(self, count, program, *arguments, **options):
        return self.run("-np", count, *self.words(program, *arguments), **options)


@pytest.fixture
def launcher(tmp_path):
    launcher = WithNewRanks(tmp_path, python=plain.python())
    yield launcher
    launcher.clean_up()
