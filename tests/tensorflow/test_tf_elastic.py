"""The checks of ranks_tf_elastic.py on two living ranks."""

import pytest

from harness.checks import check_names, run_check
from harness.installed import need

need("tensorflow")


@pytest.mark.timeout(500)
@pytest.mark.parametrize("check", check_names("tensorflow/ranks_tf_elastic.py"))
def test_elastic(check):
    run_check("tensorflow", 2, "tensorflow", "ranks_tf_elastic", check)
