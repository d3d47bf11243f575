"""Tensors on a device, beside the matrix of test_device_matrix.py: the waits that are needed and no others,
mistakes, ranks that join, several ways in one job, and the end.

The device is a fake one (tests/backends/host/fake_stream). A test that wants to see that no thread waits for a stream holds
this stream.
"""

import multiprocessing
import os
import re
import time

import numpy as np

import device_jobs
import hvd_core as hvd
import native_program
from harness import run_on_ranks
from harness.rank import expect
from hvd_core import _core
from hvd_core._runtime import runtime
from hvd_core.backends._selection.job import JobBackends


def _nobody_waits_for_a_device(face):
    rank = hvd.rank()
    engine = runtime.engine()
    device = face.device
    put = face.put
    x = put(np.full(5, rank + 1.0, np.float32))
    device.sync()
    go = device.hold()
    y = put(np.full(5, 10.0, np.float32))  # its data come after the hold
    handles = []
    for _ in range(3):  # the name is free as soon as the work is in the stream
        handles.append(engine.allreduce(y.ref, y.ref, "y", 0))
        engine.wait(handles[-1])
    engine.wait_many(handles)
    assert not any(engine.poll(h) for h in handles)
    # Neither other operations of the host nor the order of a stream wait for it.
    assert hvd.allreduce(np.full(3, rank + 1.0), op=hvd.Sum)[0] == 3
    for h in handles:
        engine.order_after(h, device.stream)
    assert not engine.poll(handles[0])
    hvd.barrier()
    go.value = 1
    engine.order_after(handles[2], None)
    assert engine.poll(handles[2])
    assert list(y.numpy()) == [80] * 5
    for h in handles:
        engine.release(h)

    # A result of the engine's own, copied out on the stream and without one.
    h = engine.allgather(x.ref, "gathered")
    engine.wait(h)
    assert engine.output_info(h, 0) == ((10,), 7, "fake_stream")
    out = face.empty((10,), np.float32)
    engine.copy_output(h, 0, out.ref)
    expect(ValueError, lambda: engine.output(h, 0), "copy_output")
    expect(ValueError, lambda: engine.copy_output(h, 0, x.ref), "shape, type and device")
    engine.release(h)
    assert list(out.numpy()) == [1] * 5 + [2] * 5
    h = engine.allgather(x.ref, "gathered")
    device.native = False
    again = face.empty((10,), np.float32)
    engine.copy_output(h, 0, again.ref)
    engine.order_after(h, None)
    device.native = True
    assert list(again.numpy()) == [1] * 5 + [2] * 5
    assert engine.device_types() == ["fake_stream"]
    # Handles on host memory take part in the same calls.
    h = engine.allgather(np.full(2, rank), "host")
    engine.order_after(h, device.stream)
    assert engine.output_info(h, 0) == ((4,), 5, "cpu")
    there = np.zeros(4, np.int64)
    engine.copy_output(h, 0, there)
    assert list(there) == [0, 0, 1, 1]
    time.sleep(1)
    used = time.process_time()
    time.sleep(2)
    assert time.process_time() - used < 0.2, "an idle engine works"


def test_nobody_waits_for_a_device():
    device_jobs.run_on_device(2, _nobody_waits_for_a_device)


def _mistakes_about_devices_fail_alone(face):
    rank = hvd.rank()
    engine = runtime.engine()
    device = face.device
    put = face.put
    x = put(np.ones(4, np.float32))
    stranger = _core.TensorRef(x.address, [4], 7, "elsewhere", 0)
    second = _core.TensorRef(x.address, [4], 7, "fake_stream", 1, device.stream)
    assert face.allreduce(np.ones(2, np.float32), "first", hvd.Sum)[0] == 2

    def mistake(name, ref, *parts):
        if rank == 0:
            expect(ValueError, lambda: engine.allreduce(ref, ref, name, 0), *parts)
        else:
            expect(
                hvd.HorovodInternalError,
                lambda: engine.allreduce(x.ref, x.ref, name, 0, 1.0, 1.0, 0, True),
                parts[0],
            )

    mistake(
        "stranger",
        stranger,
        "no backend serves tensors on device type 'elsewhere'",
        "cpu, fake_stream",
        "hvd plugin list",
    )
    mistake("second", second, "fake_stream device 1", "works on device 0", "local rank")
    host = np.ones(4, np.float32)
    expect(ValueError, lambda: engine.allreduce([x.ref], [host], "apart", 0), "on the device of its input")
    # One rank on the host, the other on the device.
    tensor = x.ref if rank else host
    expect(
        hvd.HorovodInternalError,
        lambda: engine.allreduce(tensor, tensor, "mixed", 0, 1.0, 1.0, 0, True),
        "Mismatched ALLREDUCE device selection",
    )
    assert face.allreduce(np.ones(2, np.float32), "last", hvd.Sum)[0] == 2


def test_mistakes_about_devices_fail_alone():
    device_jobs.run_on_device(2, _mistakes_about_devices_fail_alone)


def _without_emulation_what_is_lacking_is_refused(face):

    text = expect(hvd.HorovodInternalError, lambda: face.allreduce(np.ones(3, np.int64), "x", hvd.Sum))
    assert text == (
        "horovod: allreduce of int64 on fake_stream is not supported by backend 'fake_stream' and emulation is off "
        "(HOROVOD_EMULATION=0).\n  fix: HOROVOD_BACKEND=fake_stream.allreduce=tcp, or cast.  No automatic narrowing is done."
    ), text
    assert face.allreduce(np.ones(3, np.float32), "x", hvd.Sum)[0] == 2
    # Over the host a reducescatter is staged, which is no emulation.
    assert face.reducescatter(np.ones((2, 3), np.int64), "y", hvd.Sum)[0][0] == 2


def test_without_emulation_what_is_lacking_is_refused():
    device_jobs.run_on_device(
        2, _without_emulation_what_is_lacking_is_refused, routes=[0], env={"HOROVOD_EMULATION": "0"}
    )


def _a_rank_that_has_joined_takes_part_with_its_device(face):
    rank = hvd.rank()
    if rank < 2:
        for turn in range(3):
            got = face.allreduce(np.full(5, rank + 1, np.float32), f"a{turn}", hvd.Sum)
            assert list(got) == [3] * 5, got
            got = face.allreduce(np.full(5, rank + 1, np.float32), f"b{turn}", hvd.Average, 2.0)
            assert np.allclose(got, 2), got
            assert list(face.allreduce(np.full(5, rank + 1, np.int64), f"c{turn}", hvd.Product)) == [2] * 5
            assert list(face.allreduce(np.full(5, rank + 1, np.int32), f"d{turn}", hvd.Min)) == [1] * 5
            assert list(face.allgather(np.full(2, rank + 1, np.float32), f"e{turn}")) == [1, 1, 2, 2]
            got = face.reducescatter(np.full((6, 2), rank + 1, np.float32), f"f{turn}", hvd.Sum)
            assert got.shape == (2, 2) and got[0][0] == 3, got
            assert face.broadcast(np.full(3, rank, np.float32), 1, f"g{turn}")[0] == 1
    last = hvd.join()
    print("joined", last, flush=True)


def test_a_rank_that_has_joined_takes_part_with_its_device():
    for device_type in ("fake_stream", "fake_sync"):
        output = device_jobs.run_on_device(
            3,
            _a_rank_that_has_joined_takes_part_with_its_device,
            device_type=device_type,
            routes=[0, 2, 3, 4, 5] if device_type == "fake_stream" else [],
        ).output
        assert output.count("joined") == 3


def _host_operations_over_another_backend(face):
    rank = hvd.rank()
    assert list(hvd.allgather(np.full(2, rank))) == [0, 0, 1, 1]
    assert hvd.allreduce(np.full(2, rank + 1), op=hvd.Sum)[0] == 3
    assert hvd.broadcast(np.full(2, rank), 1)[0] == 1


def test_host_operations_over_another_backend():
    minimal = native_program.backend(device_jobs.BACKENDS / "minimal" / "minimal.cc")
    output = device_jobs.run_on_device(
        2, _host_operations_over_another_backend, host_routes={3: ("minimal", str(minimal))}
    ).output
    said = re.findall(r"(\w+) of int64 on cpu: backend 'minimal'", output)
    assert set(said) <= {"allgather"}, output
    assert "broadcast of" not in output


def _the_end_waits_for_the_device(face):
    rank = hvd.rank()
    engine = runtime.engine()
    device = face.device
    put = face.put
    x = put(np.full(100_000, rank + 1.0, np.float32))
    h = engine.allreduce(x.ref, x.ref, "x", 0)
    engine.wait(h)
    engine.order_after(h, device.stream)

    def child():
        expect(hvd.HorovodInternalError, lambda: engine.allreduce(x.ref, x.ref, "y", 0))
        os._exit(0)

    worker = multiprocessing.get_context("fork").Process(target=child)
    worker.start()
    worker.join(30)
    assert worker.exitcode == 0, worker.exitcode
    hvd.shutdown()
    assert set(x.numpy()) == {3.0}
    # And again, with a device that is opened anew.
    hvd.init()
    engine = runtime.engine()
    assert face.allreduce(np.ones(2, np.float32), "z", hvd.Sum)[0] == 2


def test_the_end_waits_for_the_device():
    device_jobs.run_on_device(
        2, _the_end_waits_for_the_device, env={"HOROVOD_BACKEND_FAKE_STREAM_DELAY_US": "20000"}
    )


def _asks_three_times():
    asked = []
    find = JobBackends.find_device

    def counted(self, device_type):
        asked.append(device_type)
        return find(self, device_type)

    JobBackends.find_device = counted
    try:
        hvd.init()
        answers = [runtime.engine().serves("nonesuch") for _ in range(3)]
    finally:
        JobBackends.find_device = find
    return answers, asked


def test_a_device_type_without_backend_is_looked_for_once():
    assert run_on_ranks(1, _asks_three_times, init=None).results == [([False] * 3, ["nonesuch"])]
