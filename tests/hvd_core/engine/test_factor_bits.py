"""prescale_factor and postscale_factor give the same bits as the original on two ranks, over each backend.

The folder of the backend mpi has this check for jobs of mpirun.
"""

import pytest

import factor_rule
from harness import run_on_ranks
from hvd_core.backends import installed

WAYS = {
    "shm": {"HOROVOD_BACKEND": "shm"},
    "tcp": {"HOROVOD_BACKEND": "tcp"},
    "gloo": {"HOROVOD_BACKEND": "gloo"},
    "two hosts": {"HOROVOD_SIMULATED_HOSTS": "0,1"},
}


@pytest.mark.parametrize("way", WAYS)
def test_factors_to_the_bit(way):
    needed = "tcp" if way == "two hosts" else way
    if all(backend.name != needed for backend in installed()):
        pytest.skip(f"the backend {needed} is not installed")
    run_on_ranks(2, factor_rule.check_bits, env=WAYS[way])


@pytest.mark.parametrize("way", ["shm", "tcp", "two hosts"])
def test_a_factor_that_becomes_nothing_when_it_is_shared(way):
    run_on_ranks(2, factor_rule.check_quotient_that_is_too_small, env=WAYS[way])
