"""The conformance kit on the backend nccl, on real devices: alone, and with two and four ranks that may share a GPU."""

import gpu_machine

gpu_machine.require()

import pytest

from hvd_core.conformance import CommonCases


class TestAlone(CommonCases):
    backend = "nccl"
    ranks = 1


@pytest.mark.timeout(400)
class TestTwoRanks(CommonCases):
    backend = "nccl"
    ranks = 2
    patience = 2.0
    environment = gpu_machine.sharing(2)


@pytest.mark.timeout(600)
class TestFourRanks(CommonCases):
    """Quick counts: four ranks that speak over sockets, for want of GPUs, are slow."""

    backend = "nccl"
    ranks = 4
    quick = True
    patience = 3.0
    environment = gpu_machine.sharing(4)
