"""Large allreduces over two levels of hosts, in chunks of which one is between the hosts while another one is within them:
values, lists of tensors, the timeline, and ranks that end or disagree."""

import json
import os
import signal

import numpy as np
import pytest

import hvd_core as hvd
from harness import launch, pids_of, run_on_ranks
from harness.rank import expect, ignore_the_launcher
from hvd_core.backends.errors import BackendDisagreement

# Two ranks on each host. In the second layout a rank is alone on its host, and another one is in no lane.
LAYOUTS = {"2x2": "0,0,1,1", "2+1": "0,0,1"}
SIZES = {"2x2": 4, "2+1": 3}
BYTES = 5_000_072
SWITCH = "HOROVOD_HIERARCHICAL_OVERLAP"


def many(dtype):
    """Elements of two chunks and a little more."""
    return BYTES // np.dtype(dtype).itemsize


def numbers(rank, count, dtype):
    """Small integers, so that every sum is exact in every type."""
    return ((np.arange(count, dtype=np.int32) * 7 + 3 * rank) % 11 - 5).astype(dtype)


def total(count, dtype):
    return np.sum([numbers(rank, count, dtype) for rank in range(hvd.size())], axis=0, dtype=dtype)


def sums_are_right():
    rank, n = hvd.rank(), many(np.float32)
    own, right = numbers(rank, n, np.float32), total(n, np.float32)
    for turn in range(2):  # the levels of the first one do not overlap
        assert np.array_equal(hvd.allreduce(own, op=hvd.Sum, name=f"apart {turn}"), right)
    array = own.copy()
    hvd.allreduce_(array, op=hvd.Sum, name="in place")
    assert np.array_equal(array, right)
    got = hvd.allreduce(own, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0, name="factors")
    assert np.array_equal(got, 2 * right)
    counts = [1, n, 0, 17, n // 3]
    got = hvd.grouped_allreduce([own[:count] for count in counts], op=hvd.Sum, name="list")
    assert all(np.array_equal(one, right[:count]) for one, count in zip(got, counts, strict=True))
    for dtype in (np.float16, np.int32, np.int64):  # each is averaged in a way of its own
        count = many(dtype)
        got = hvd.allreduce(numbers(0, count, dtype) * hvd.size(), op=hvd.Average, name=f"{dtype.__name__}")
        assert np.array_equal(got, numbers(0, count, dtype) * hvd.size())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sums(layout):
    run_on_ranks(SIZES[layout], sums_are_right, env={"HOROVOD_SIMULATED_HOSTS": LAYOUTS[layout]})


def names_in(timeline):
    return {event.get("name") for event in json.loads(timeline.read_text())}


def two_large_sums():
    for turn in range(2):
        hvd.allreduce(np.ones(many(np.float32), np.float32), op=hvd.Sum, name=f"large {turn}")


@pytest.mark.parametrize("switch", ["1", "0"])
def test_the_timeline_names_the_overlapped_levels(tmp_path, switch):
    timeline = tmp_path / "timeline.json"
    env = {"HOROVOD_SIMULATED_HOSTS": LAYOUTS["2x2"], SWITCH: switch, "HOROVOD_TIMELINE": str(timeline)}
    run_on_ranks(4, two_large_sums, env=env)
    found = names_in(timeline)
    assert ("SHM_TCP_ALLREDUCE" in found) == (switch == "1"), found
    assert {"SHM_REDUCESCATTER", "TCP_ALLREDUCE", "SHM_ALLGATHER"} <= found, found


@pytest.mark.ranks(2, init=None, env={"HOROVOD_SIMULATED_HOSTS": "0,1"})
def test_ranks_that_disagree_are_told():
    os.environ[SWITCH] = os.environ["HOROVOD_RANK"]
    expect(BackendDisagreement, hvd.init, SWITCH)


def sum_until_the_job_fails():
    ignore_the_launcher()
    array = np.ones(4_000_000, np.float32)
    for _ in range(3):
        hvd.allreduce(array, op=hvd.Sum, name="grad")
    print("pid", hvd.rank(), os.getpid(), flush=True)
    while True:
        try:
            handles = [hvd.allreduce_async(array, op=hvd.Sum, name=f"grad {turn}") for turn in range(4)]
            for handle in handles:
                hvd.synchronize(handle)
        except hvd.HorovodInternalError as error:
            print("heard:", error, flush=True)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            raise


@pytest.mark.parametrize("victim", [0, 3])
def test_a_rank_that_ends_is_named(tmp_path, victim):
    job = launch(4, sum_until_the_job_fails, folder=tmp_path, env={"HOROVOD_SIMULATED_HOSTS": LAYOUTS["2x2"]})
    pids, text = pids_of(job, 4)
    os.kill(pids[victim], signal.SIGKILL)
    output = text + job.communicate(timeout=60)[0]
    heard = [line for line in output.splitlines() if "heard:" in line]
    assert len(heard) == 3 and all(f"rank {victim} " in line for line in heard), output
    # Each strand must have settled. Of the victim horovodrun may say that it had an operation in flight.
    of_ranks = "".join(line for line in output.splitlines(True) if not line.startswith("horovodrun: "))
    assert "in flight" not in of_ranks and "until this process ends" not in output, output
