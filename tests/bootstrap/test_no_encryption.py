"""HOROVOD_TLS: a job that asks for encryption must not run without it."""

import pytest

from hvd_core.bootstrap import connect


@pytest.mark.parametrize("value", ["1", "true", "psk"])
def test_encryption_is_refused(value):
    with pytest.raises(
        ValueError, match="HOROVOD_TLS asks for encryption between hosts, which hvd-core does not have"
    ):
        connect({"HOROVOD_TLS": value})


@pytest.mark.parametrize("value", ["", "0"])
def test_a_job_that_does_not_ask_for_it_runs(value):
    world = connect({"HOROVOD_TLS": value})
    assert world.size == 1
    world.close()
