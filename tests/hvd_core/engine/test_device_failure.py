"""Failures on a device after the work was given to it: they surface at the next call and end the job on all ranks,
with the backend, its number and the rank; a rank that dies frees those whose streams wait for it."""

import os
import re
import signal

import numpy as np

import device_jobs
import hvd_core as hvd
from harness import finish, pids_of
from harness.rank import expect, ignore_the_launcher, meet
from hvd_core._runtime import runtime


def _repeats_operations(face, failing_rank, variable, value):
    """Operations until one fails, where the option of one rank's device makes it fail."""
    if hvd.rank() == failing_rank:
        os.environ[variable] = value

    def steps():
        for _ in range(50):
            for n in range(3):
                face.grouped_allreduce([np.ones(1000, np.float32)] * 2, f"x{n}", hvd.Sum)

    text = expect(hvd.HorovodInternalError, steps)
    print("heard:", text.replace("\n", " "), flush=True)
    expect(hvd.HorovodInternalError, lambda: face.allreduce(np.ones(2, np.float32), "y", hvd.Sum), "aborted")
    meet("heard")  # the launcher ends the other soon after the first
    os._exit(3)


def heard(folder, failing_rank, variable, value, *parts, **options):
    """Runs that job; both ranks print an error that has these parts in it."""
    words = (failing_rank, variable, value)
    job = device_jobs.launch_on_device(2, folder, _repeats_operations, *words, **options)
    output = finish(job, 100, 3)
    lines = [line for line in output.splitlines() if "heard:" in line]
    assert len(lines) == 2, output
    for line in lines:
        for part in parts:
            assert part in line, output


def test_a_communicator_that_fails_later(tmp_path):
    text = "rank 0: fake_stream: async_error: a peer does not answer (REMOTE, vendor code 6)"
    heard(tmp_path, 0, "HOROVOD_BACKEND_FAKE_STREAM_FAIL_COLLECTIVE", "5", text)


def test_a_device_that_fails_later(tmp_path):
    text = "rank 1: fake_stream: event_query: a copy has failed (DEVICE, vendor code 77)"
    heard(tmp_path, 1, "HOROVOD_BACKEND_FAKE_STREAM_FAIL_COPY", "20", text)


def test_a_device_that_fails_while_it_is_staged(tmp_path):
    parts = ("rank 1: fake_sync: event_", "DEVICE, vendor code 77")
    option = "HOROVOD_BACKEND_FAKE_SYNC_FAIL_COPY"
    heard(tmp_path, 1, option, "20", *parts, device_type="fake_sync", routes=[])


def _waits_for_a_stream_that_stands_still(face):
    rank, engine, device = hvd.rank(), runtime.engine(), face.device
    assert face.allreduce(np.ones(2, np.float32), "first", hvd.Sum)[0] == 2
    x = face.put(np.ones(1000, np.float32))
    device.sync()
    if rank == 1:
        device.hold()
        _kept, x = x, face.put(np.ones(1000, np.float32))
    ignore_the_launcher()
    h = engine.allreduce(x.ref, x.ref, "x", 0)
    engine.wait(h)
    print("pid", rank, os.getpid(), flush=True)
    text = expect(hvd.HorovodInternalError, lambda: engine.order_after(h, None))
    print("heard:", text, flush=True)
    # The stream is free, and so is everything on it.
    device.sync()
    hvd.shutdown()
    os._exit(3)


def test_kill_of_a_rank_while_streams_wait_for_it(tmp_path):
    job = device_jobs.launch_on_device(2, tmp_path, _waits_for_a_stream_that_stands_still)
    pids, text = pids_of(job, 2)
    os.kill(pids[1], signal.SIGKILL)
    output, _ = job.communicate(timeout=60)
    assert re.search(r"heard: .*rank 1 \(host .+\) died", text + output), text + output


def _waits_until_the_stall_ends_the_job(face):
    rank, engine, device = hvd.rank(), runtime.engine(), face.device
    x = face.put(np.ones(1000, np.float32))
    device.sync()
    if rank == 1:
        go = device.hold()
        _kept, x = x, face.put(np.ones(1000, np.float32))
    h = engine.allreduce(x.ref, x.ref, "x", 0)
    text = expect(hvd.HorovodInternalError, lambda: engine.order_after(h, None))
    print("heard:", text.replace("\n", " "), flush=True)
    if rank == 1:
        go.value = 1
    meet("heard")
    os._exit(3)


def test_a_device_that_stands_still_is_told_and_then_ends_the_job(tmp_path):
    env = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "4"}
    job = device_jobs.launch_on_device(2, tmp_path, _waits_until_the_stall_ends_the_job, env=env)
    output = finish(job, 100, 3)
    # How long it has been, or a little more where the engine looked late.
    assert re.search(
        r"allreduce 'x' of backend 'fake_stream' on fake_stream:0, agreed by .* is not done [1-9]\d* seconds",
        output,
    )
    heard = [line for line in output.splitlines() if "heard:" in line]
    waited = [
        int(found[1]) for line in heard if (found := re.search(r"is not done (\d+) seconds after", line))
    ]
    assert len(heard) == len(waited) == 2 and min(waited) >= 4, output
