"""The kinds of failure reach Python as classes of their own, equal on all ranks that fail for one reason."""

import pickle
import traceback

import numpy as np
import pytest

import hvd_core as hvd
from harness.rank import expect
from horovod.common import exceptions
from hvd_core import errors

KINDS = ("OperationFailedError", "ProcessSetRemovedError", "JobEndedError")
DYNAMIC = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}


def kind(call):
    try:
        call()
    except errors.HorovodInternalError as error:
        return type(error)
    raise AssertionError("the call was expected to fail")


@pytest.mark.ranks(2)
def test_kinds_a_disagreement_fails_the_operation_on_all_ranks():
    for call in (
        lambda: hvd.allreduce(np.ones(2 + hvd.rank()), name="shapes"),
        lambda: hvd.synchronize(hvd.allreduce_async(np.ones(2 + hvd.rank()), name="shapes")),
        lambda: hvd.broadcast(np.ones(2), root_rank=hvd.rank(), name="roots"),
    ):
        assert kind(call) is errors.OperationFailedError
    assert hvd.allreduce(np.ones(1), op=hvd.Sum) == 2


@pytest.mark.ranks(2)
def test_kinds_a_mistake_of_one_rank_fails_the_operation_of_the_others():
    if hvd.rank() == 1:
        expect(ValueError, lambda: hvd.allreduce(np.ones(2), name="wrong", prescale_factor=0.0))
    else:
        assert kind(lambda: hvd.allreduce(np.ones(2), name="wrong")) is errors.OperationFailedError
    assert hvd.allreduce(np.ones(1), op=hvd.Sum) == 2


@pytest.mark.ranks(3, env=DYNAMIC)
def test_kinds_the_end_of_a_process_set():
    pair = hvd.add_process_set([0, 1])
    if hvd.rank() == 0:
        pending = hvd.allreduce_async(np.ones(2), name="late", process_set=pair)
    hvd.remove_process_set(pair)
    if hvd.rank() == 0:
        assert kind(lambda: hvd.synchronize(pending)) is errors.ProcessSetRemovedError
    assert hvd.allreduce(np.ones(1), op=hvd.Sum) == 3


@pytest.mark.ranks(2)
def test_kinds_the_end_of_the_job():
    if hvd.rank() == 0:
        # Before the end, or after it: the kind is the same.
        assert kind(lambda: hvd.synchronize(hvd.allreduce_async(np.ones(2)))) is errors.JobEndedError
        assert kind(lambda: hvd.allreduce(np.ones(2))) is errors.JobEndedError
    hvd.shutdown()
    hvd.init()
    assert hvd.allreduce(np.ones(1), op=hvd.Sum) == 2


@pytest.mark.parametrize("name", [*KINDS, "HorovodInternalError", "HostsUpdatedInterrupt"])
def test_kinds_are_public_and_can_be_pickled(name):
    error = getattr(exceptions, name)
    assert error.__module__ == "horovod.common.exceptions"
    made = error() if name == "HostsUpdatedInterrupt" else error("a text")
    again = pickle.loads(pickle.dumps(made))
    assert type(again) is error and again.args == made.args
    assert name not in KINDS or issubclass(error, exceptions.HorovodInternalError)
    assert "".join(traceback.format_exception_only(made)).startswith(f"horovod.common.exceptions.{name}")


def test_kinds_the_version_error_can_be_pickled():
    made = exceptions.HorovodVersionMismatchError("keras", "2.0", "3.0")
    again = pickle.loads(pickle.dumps(made))
    assert (str(again), again.name, again.installed_version) == (str(made), "keras", "3.0")
