"""Communicators of one backend on devices that another opened: they serve memory that they read, and all
other memory goes through host memory.

"foreign_device" (tests/backends/host/foreign_device) has no device table; devices are those of "fake_stream" and "fake_sync".
"""

import re

import numpy as np
import pytest

import device_jobs
import hvd_core as hvd
import native_program
from hvd_core._runtime import runtime

FOREIGN_DEVICE = device_jobs.BACKENDS / "foreign_device" / "foreign_device.cc"
# As HOROVOD_GPU_ALLREDUCE=FAKE_STREAM, HOROVOD_GPU_ALLGATHER=FOREIGN_DEVICE and so on would have it.
OWN, OTHERS = [0, 4], [2, 3, 5]


def _operations(face):
    """Operations of two types, with their values checked; returns how each (collective, type) is served."""
    rank, size = hvd.rank(), hvd.size()
    for turn in range(3):
        for dtype in (np.float32, np.int32):
            name = f"{np.dtype(dtype)}.{turn}"
            got = face.allreduce(np.full(5000, rank + 1, dtype), f"a.{name}", hvd.Sum)
            assert got.dtype == dtype and set(got) == {size * (size + 1) // 2}, got
            got = face.allgather(np.arange((rank + 1) * 3, dtype=dtype), f"b.{name}")
            assert list(got) == [i for r in range(size) for i in range((r + 1) * 3)], got
            got = face.broadcast(np.full(70_000, rank, dtype), 1, f"c.{name}")
            assert set(got) == {1}, got
            got = face.reducescatter(np.full((6, 2), rank + 1, dtype), f"d.{name}", hvd.Sum)
            assert set(got.ravel()) == {size * (size + 1) // 2}, got
    (device_info,) = (b for b in runtime.engine().backend_info() if b["role"] == "device")
    return {
        (s["collective"], s["dtype"]): (s["served"], s["backend"], s["how"]) for s in device_info["served"]
    }


def mixed(
    ranks=2, device_type="fake_stream", routes=OWN, foreign=OTHERS, reads="", lacks=-1, function=_operations
):
    """The outcome of such a job: what the foreign device reads and lacks is told it by its options."""
    env = {
        "HOROVOD_BACKEND_FOREIGN_DEVICE_SHM": str(native_program.shm_library()),
        "HOROVOD_BACKEND_FOREIGN_DEVICE_READS": reads,
        "HOROVOD_BACKEND_FOREIGN_DEVICE_LACKS": str(lacks),
    }
    foreign_device = ("foreign_device", str(native_program.backend(FOREIGN_DEVICE)))
    return device_jobs.run_on_device(
        ranks,
        function,
        device_type=device_type,
        routes=routes,
        env=env,
        foreign=dict.fromkeys(foreign, foreign_device),
    )


def said(output):
    return re.findall(r"(\w+) on fake_stream: (STAGED .*) \(said once\)", output)


def _operations_and_facts(face):
    served = _operations(face)
    engine = runtime.engine()
    assert engine.backend_fact("foreign_device", "device_memory") == "fake_stream,fake_sync"
    assert engine.backend_fact("fake_stream", "device_memory") is None
    assert engine.backend_fact("absent", "device_memory") is None
    return served


def test_a_foreign_device_that_reads_the_memory():
    outcome = mixed(reads="fake_stream,fake_sync", function=_operations_and_facts)
    for how in outcome.results:
        assert how["allgather", "float32"] == ("NATIVE", "foreign_device", ""), how
        assert how["broadcast", "int32"] == ("NATIVE", "foreign_device", "")
        assert how["allreduce", "float32"] == ("NATIVE", "fake_stream", "")
    assert said(outcome.output) == []


def test_a_foreign_device_that_does_not_read_it_is_staged_and_says_why():
    outcome = mixed(ranks=3)
    why = "through host memory and foreign_device (the foreign_device reads no fake_stream memory here)"
    for how in outcome.results:
        assert how["allgather", "float32"] == ("STAGED", "foreign_device", why), how
        assert how["broadcast", "int32"] == ("STAGED", "foreign_device", why)
        assert how["allreduce", "float32"] == ("NATIVE", "fake_stream", "")
    reasons = said(outcome.output)
    assert sorted(coll for coll, _ in reasons) == ["allgather", "broadcast"]
    assert all("(the foreign_device reads no fake_stream memory here)" in text for _, text in reasons)


def test_a_foreign_device_that_reads_some_types():
    for how in mixed(routes=[], foreign=[0, *OTHERS], reads="fake_stream", lacks=4).results:
        assert how["allgather", "float32"] == ("NATIVE", "foreign_device", ""), how
        assert how["allgather", "int32"] == ("EMULATED", "foreign_device", "its bytes as another type")
        assert how["allreduce", "float32"][0] == "NATIVE"
        why = "through host memory and foreign_device"
        assert how["allreduce", "int32"] == ("STAGED", "foreign_device", why), how


@pytest.mark.parametrize("reads", ["fake_sync", ""])
def test_a_foreign_device_on_a_device_that_has_no_communicators(reads):
    served = "NATIVE" if reads else "STAGED"
    outcome = mixed(device_type="fake_sync", routes=[], foreign=[0, 2, 3, 4, 5], reads=reads)
    for how in outcome.results:
        assert {h[0] for h in how.values()} == {served}, how
        assert {h[1] for h in how.values()} == {"foreign_device"}


def test_a_backend_for_host_memory_alone_is_named_for_a_device():
    minimal = native_program.backend(device_jobs.BACKENDS / "minimal" / "minimal.cc")
    foreign = {c: ("minimal", str(minimal)) for c in OTHERS}
    why = "through host memory and minimal (it does not support fake_stream memory)"
    for how in device_jobs.run_on_device(2, _operations, routes=OWN, foreign=foreign).results:
        assert how["allgather", "float32"] == ("STAGED", "minimal", why), how


@pytest.mark.parametrize(("hosts", "carriers"), [("0,0", "shm"), ("0,1", "tcp"), ("0,0,1", "shm x tcp")])
def test_staged_operations_name_the_backends_that_carry_them(hosts, carriers):
    """With one rank on each host there are no two levels, also where the hierarchical allreduce is asked for."""
    env = {"HOROVOD_SIMULATED_HOSTS": hosts, "HOROVOD_HIERARCHICAL_ALLREDUCE": "1"}
    ranks = hosts.count(",") + 1
    for how in device_jobs.run_on_device(ranks, _operations, routes=[], env=env).results:
        served = ("STAGED", carriers, f"through host memory and {carriers}")
        assert how["allreduce", "float32"] == served, how
