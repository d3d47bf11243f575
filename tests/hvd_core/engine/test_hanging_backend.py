"""Calls into a backend that do not come back, and operations that it never completes: the job ends with an error that
names the call (tests/backends/host/hanging)."""

import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest

import hvd_core as hvd
import native_program
from forked import ForkedRanks
from hvd_core._bootstrap.store import StoreServer

HANGING = Path(__file__).parents[2] / "backends/host" / "hanging" / "hanging.cc"
SECRET = bytes(range(32))
WITHIN = 100
LIMIT = 3  # seconds; each rank is on the processor for a part of this time, also on a busy machine
LARGE = 8 << 20  # bytes, for which the embedded backend needs several turns


def outcomes(work, call, until="", start_at=3, lost=(), meanwhile=None, size=2, **env):
    """What work() returned on each of two ranks, or of `size`; rank 1 hangs in `call`, from the `start_at`-th on.

    `meanwhile` is called with the processes' ids while they work.
    """
    library = native_program.backend(HANGING)
    inner = Path(hvd.__file__).parent / "lib" / "libhvd_backend_shm.so"
    with StoreServer("127.0.0.1", SECRET) as server:
        common = {
            "HOROVOD_SIZE": str(size),
            "HOROVOD_STORE": server.address,
            "HOROVOD_SECRET_KEY": SECRET.hex(),
            "HOROVOD_BACKEND": "hanging",
            "HOROVOD_BACKEND_PATH_HANGING": str(library),
            "HOROVOD_OPERATION_TIMEOUT_SECONDS": str(LIMIT),
            "HOROVOD_LOG_LEVEL": "fatal",
            "HVD_TEST_HANG_OVER": str(inner),
            "HVD_TEST_HANG_CALL": call,
            "HVD_TEST_HANG_RANK": "1",
            "HVD_TEST_HANG_FROM": str(start_at),
            "HVD_TEST_HANG_UNTIL": until,
            **env,
        }

        def rank_work(rank, pipe):
            os.environ.update(common, HOROVOD_RANK=str(rank))
            return work()

        with ForkedRanks(size, rank_work) as ranks:
            if meanwhile:
                meanwhile([process.pid for process in ranks.processes])
            return ranks.results(WITHIN, lost)


def train():
    hvd.init()
    try:
        for _ in range(40):
            hvd.allreduce(np.ones(LARGE // 4, np.float32), name="weights")
    except hvd.HorovodInternalError as error:
        hvd.shutdown()
        return str(error)
    return "went on"


def says_which_call_hangs(text, call="collective"):
    """Whether an error names the operation and, from rank 1, the call that hangs.

    On a busy machine rank 0, which waits for rank 1, may report first: that it has not returned from a call or has
    not completed the operation. Rank 1 may be seen before it makes its call.
    """
    shown = "allreduce of 'allreduce.weights', 8388608 bytes, ranks 0, 1 (HOROVOD_OPERATION_TIMEOUT_SECONDS)"
    from_1 = (
        rf"rank 1 \(host .*the backend 'hanging' has not (returned from {call}|completed an operation) for"
    )
    from_0 = (
        r"rank 0 \(host .*the backend 'hanging' has not (returned from (collective|req_test|req_wait|req_free)"
        r"|completed an operation) for"
    )
    return shown in text and bool(re.search(from_1, text) or re.search(from_0, text))


@pytest.mark.timeout(150)
def test_hang_ends_the_job_on_every_rank():
    for text in outcomes(train, "collective", "abort"):
        assert says_which_call_hangs(text), text


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("stall", "operation", "ends_it"),
    [
        (str(LIMIT), "600", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"),
        ("600", str(LIMIT), "HOROVOD_OPERATION_TIMEOUT_SECONDS"),
    ],
)
def test_the_limit_that_comes_first_ends_the_job(stall, operation, ends_it):
    """With one text for all ranks, although each of the three hangs and watches itself."""
    texts = outcomes(
        train_in_the_background,
        "collective",
        "abort",
        size=3,
        HVD_TEST_HANG_RANK="all",
        HOROVOD_STALL_CHECK_TIME_SECONDS="1",
        HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=stall,
        HOROVOD_OPERATION_TIMEOUT_SECONDS=operation,
    )
    assert f"the backend 'hanging' has not returned from collective for {LIMIT}" in texts[0]
    assert f"({ends_it})" in texts[0] and len(set(texts)) == 1, texts


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_hang_in_a_wait_ends_the_job_on_every_rank():
    # The engine asks for the end of an operation, or waits for it, as its thread has other work or none.
    for text in outcomes(train, "req_test,req_wait", "abort"):
        assert says_which_call_hangs(text, "req_(test|wait)"), text


@pytest.mark.timeout(150)
def test_an_operation_that_is_never_complete_ends_the_job():
    # On a busy machine a rank may be seen in a call that asks whether the operation is complete.
    for text in outcomes(train, "never", "abort"):
        assert re.search(r"has not (completed an operation|returned from req_)", text), text


@pytest.mark.timeout(150)
def test_process_ends_whose_own_thread_does_not_come_back(capfd):
    heard, own = outcomes(train, "collective", lost={1})
    assert says_which_call_hangs(heard), heard
    if own is not None:  # the call was made by the engine's thread
        assert says_which_call_hangs(own), own
    else:
        said = capfd.readouterr().err
        assert "horovod FATAL: rank 1 (host " in said and "this process ends with exit code 1" in said


def train_in_the_background():
    """Polls, so that the engine's thread makes all calls."""
    hvd.init()
    try:
        for _ in range(40):
            handle = hvd.allreduce_async(np.ones(LARGE // 4, np.float32), name="weights")
            while not hvd.poll(handle):
                time.sleep(0.005)
            hvd.synchronize(handle)
    except hvd.HorovodInternalError as error:
        hvd.shutdown()
        return str(error)
    return "went on"


@pytest.mark.timeout(150)
def test_thread_of_the_engine_is_left_behind():
    for text in outcomes(train_in_the_background, "collective"):
        assert says_which_call_hangs(text), text


@pytest.mark.timeout(150)
def test_hang_in_a_free_ends_the_job_on_every_rank():
    """The other rank, which has completed the operation, waits in the next one."""
    for text in outcomes(train, "req_free", "abort"):
        assert says_which_call_hangs(text, "req_free"), text


def train_in_groups():
    hvd.init()
    try:
        for _ in range(40):
            hvd.grouped_allgather([np.ones(8, np.float32)] * 2, name="parts")
    except hvd.HorovodInternalError as error:
        hvd.shutdown()
        return str(error)
    return "went on"


@pytest.mark.timeout(150)
def test_hang_at_the_beginning_of_a_group_ends_the_job_on_every_rank():
    for text in outcomes(train_in_groups, "group_begin", "abort", start_at=1, HVD_TEST_HANG_RANK="all"):
        assert "has not returned from group_begin for" in text, text
        assert "allgather of 'grouped_allgather.parts" in text and "64 bytes" in text, text


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_job_that_is_stopped_goes_on(tmp_path):
    """SIGSTOP on all ranks for longer than the limit, in the middle of an operation: the time does not count."""
    go = tmp_path / "go"

    def stop_for_a_while(pids):
        began = time.monotonic()
        while not Path(f"{go}.begun").exists() and time.monotonic() < began + WITHIN:
            time.sleep(0.01)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(16)
        go.touch()
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    limit = {"HOROVOD_OPERATION_TIMEOUT_SECONDS": "10"}
    assert outcomes(train, "collective", str(go), meanwhile=stop_for_a_while, **limit) == ["went on"] * 2


def end_in_a_set():
    hvd.init()
    first = hvd.add_process_set(range(1, hvd.size()))
    if first.included():
        hvd.allreduce(np.ones(4, np.float32), process_set=first)
    try:
        hvd.remove_process_set(first)
        while True:
            hvd.allreduce(np.ones(4, np.float32), name="after")
    except hvd.HorovodInternalError as error:
        hvd.shutdown()
        return str(error)


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_process_set_that_is_not_destroyed_ends_the_job(capfd):
    texts = outcomes(end_in_a_set, "destroy", start_at=1, lost={1}, size=3, HOROVOD_DYNAMIC_PROCESS_SETS="1")
    said = capfd.readouterr().err
    for text in texts:
        if text is None:  # a thread of the program made the call
            assert "the backend 'hanging' has not returned from destroy for" in said
            assert "The call was made by a thread of the program" in said
        else:
            assert "rank 1 (host " in text and "has not returned from destroy for" in text, text


def start():
    try:
        hvd.init()
    except Exception as error:
        return str(error)
    return "started"


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_creation_is_limited_by_the_start_timeout():
    for text in outcomes(start, "create", start_at=1, HOROVOD_START_TIMEOUT="3"):
        assert "create" in text and "rank 1" in text, text


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_time_in_which_the_process_is_stopped_counts_for_no_phase(tmp_path):
    go_on = tmp_path / "go_on"

    def stop_for_longer_than_the_limit(pids):
        while not Path(f"{go_on}.begun").exists():
            time.sleep(0.01)
        os.kill(pids[0], signal.SIGSTOP)
        time.sleep(5)
        os.kill(pids[0], signal.SIGCONT)
        time.sleep(0.3)  # the watching thread looks meanwhile
        go_on.touch()

    texts = outcomes(
        start, "load", str(go_on), start_at=1, size=1, meanwhile=stop_for_longer_than_the_limit,
        HVD_TEST_HANG_RANK="0", HOROVOD_START_TIMEOUT="4",
    )  # fmt: skip
    assert texts == ["started"]


def end():
    hvd.init()
    hvd.allreduce(np.ones(4, np.float32))
    hvd.shutdown()
    return "ended"


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_destruction_that_hangs_ends_the_process(capfd):
    texts = outcomes(end, "destroy", start_at=1, lost={1})
    assert texts == ["ended", None]
    said = capfd.readouterr().err
    assert "the backend 'hanging' has not returned from destroy for" in said
    assert "this process ends with exit code 1" in said
