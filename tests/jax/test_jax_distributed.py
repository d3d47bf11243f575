"""horovod.jax works beside jax.distributed."""

import pytest

from harness.checks import run_check
from harness.installed import need

need("jax")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_both_in_one_process():
    own_ranks = {"HVD_TEST_JAX_DISTRIBUTED": "1"}
    run_check("jax", 2, "jax", "ranks_jax_distributed", "check_both_in_one_process", process_env=own_ranks)
