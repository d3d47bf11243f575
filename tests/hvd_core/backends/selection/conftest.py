"""Jobs for the tests of the selection."""

import pytest

from choosing_job import Job


@pytest.fixture
def job(tmp_path):
    """job(text of the site's file): a Job in the test's folder; plugins are looked for in its folder "site"."""
    made = []

    def make(site_file=None):
        made.append(Job(tmp_path, site_file))
        return made[-1]

    yield make
    for one in made:
        one.launcher.clean_up()
