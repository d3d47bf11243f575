"""Failures on a device after the work was given to it: they surface at the next call and end the job on all ranks,
with the backend, its number and the rank; a rank that dies frees those whose streams wait for it."""

import os
import re
import signal

import device_jobs
import jobs

STEPS = """
    def steps():
        for step in range(50):
            for n in range(3):
                face.grouped_allreduce([np.ones(1000, np.float32)] * 2, f"x{n}", hvd.Sum)

    text = expect(hvd.HorovodInternalError, steps)
    print("heard:", text.replace("\\n", " "), flush=True)
    expect(hvd.HorovodInternalError, lambda: face.allreduce(np.ones(2, np.float32), "y", hvd.Sum), "aborted")
    meet("heard")  # the launcher ends the other soon after the first
    os._exit(3)
"""


def heard(folder, before, *parts, **options):
    output = jobs.finish(device_jobs.start(2, folder, before + STEPS, **options), 100, 3)
    lines = [line for line in output.splitlines() if "heard:" in line]
    assert len(lines) == 2, output
    for line in lines:
        for part in parts:
            assert part in line, output


def test_a_communicator_that_fails_later(tmp_path):
    before = """
    if rank == 0:
        os.environ["HOROVOD_BACKEND_FAKE_STREAM_FAIL_COLLECTIVE"] = "5"
    """
    heard(
        tmp_path, before, "rank 0: fake_stream: async_error: a peer does not answer (REMOTE, vendor code 6)"
    )


def test_a_device_that_fails_later(tmp_path):
    before = """
    if rank == 1:
        os.environ["HOROVOD_BACKEND_FAKE_STREAM_FAIL_COPY"] = "20"
    """
    heard(tmp_path, before, "rank 1: fake_stream: event_query: a copy has failed (DEVICE, vendor code 77)")


def test_a_device_that_fails_while_it_is_staged(tmp_path):
    before = """
    if rank == 1:
        os.environ["HOROVOD_BACKEND_FAKE_SYNC_FAIL_COPY"] = "20"
    """
    heard(
        tmp_path,
        before,
        "rank 1: fake_sync: event_",
        "DEVICE, vendor code 77",
        device_type="fake_sync",
        routes=[],
    )


def test_kill_of_a_rank_while_streams_wait_for_it(tmp_path):
    job = device_jobs.start(
        2,
        tmp_path,
        """
        assert face.allreduce(np.ones(2, np.float32), "first", hvd.Sum)[0] == 2
        x = put(np.ones(1000, np.float32))
        device.sync()
        if rank == 1:
            device.hold()
            keep, x = x, put(np.ones(1000, np.float32))
        # The launcher ends who has not said within a second that it has heard; that may be too short here.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        h = engine.allreduce(x.ref, x.ref, "x", 0)
        engine.wait(h)
        print("pid", rank, os.getpid(), flush=True)
        text = expect(hvd.HorovodInternalError, lambda: engine.order_after(h, None))
        print("heard:", text, flush=True)
        # The stream is free, and so is everything on it.
        device.sync()
        hvd.shutdown()
        os._exit(3)
        """,
    )
    text, pids = "", {}
    while len(pids) < 2:
        line = job.stdout.readline()
        assert line, f"the job ended early:\n{text}"
        text += line
        if match := re.search(r"pid (\d+) (\d+)", line):
            pids[int(match[1])] = int(match[2])
    os.kill(pids[1], signal.SIGKILL)
    output, _ = job.communicate(timeout=60)
    assert re.search(r"heard: .*rank 1 \(host .+\) died", text + output), text + output


def test_a_device_that_stands_still_is_told_and_then_ends_the_job(tmp_path):
    job = device_jobs.start(
        2,
        tmp_path,
        """
        x = put(np.ones(1000, np.float32))
        device.sync()
        if rank == 1:
            go = device.hold()
            keep, x = x, put(np.ones(1000, np.float32))
        h = engine.allreduce(x.ref, x.ref, "x", 0)
        text = expect(hvd.HorovodInternalError, lambda: engine.order_after(h, None))
        print("heard:", text.replace("\\n", " "), flush=True)
        if rank == 1:
            go.value = 1
        meet("heard")
        os._exit(3)
        """,
        env={"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "4"},
    )
    output = jobs.finish(job, 100, 3)
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
