"""The simulated vendor library, built once per session from its own folder."""

import pytest

import sim_vendor


@pytest.fixture(scope="session")
def simulator():
    return sim_vendor.build()
