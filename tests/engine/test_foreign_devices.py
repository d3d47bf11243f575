"""Communicators of one backend on devices that another opened: what they serve of the memory, and what goes through
host memory because they do not.

"foreign_device" (tests/backends/foreign_device) has no device table; devices are those of "fake_stream" and "fake_sync".
"""

import re
import textwrap

import pytest

import device_jobs
import native_program

FOREIGN_DEVICE = device_jobs.BACKENDS / "foreign_device" / "foreign_device.cc"
# As HOROVOD_GPU_ALLREDUCE=FAKE_STREAM, HOROVOD_GPU_ALLGATHER=FOREIGN_DEVICE and so on would have it.
OWN, OTHERS = [0, 4], [2, 3, 5]

MIXED = """
def once(turn, dtype):
    got = face.allreduce(np.full(5000, rank + 1, dtype), f"a{turn}", hvd.Sum)
    assert got.dtype == dtype and set(got) == {size * (size + 1) // 2}, got
    got = face.allgather(np.arange((rank + 1) * 3, dtype=dtype), f"b{turn}")
    assert list(got) == [i for r in range(size) for i in range((r + 1) * 3)], got
    got = face.broadcast(np.full(70_000, rank, dtype), 1, f"c{turn}")
    assert set(got) == {1}, got
    got = face.reducescatter(np.full((6, 2), rank + 1, dtype), f"d{turn}", hvd.Sum)
    assert set(got.ravel()) == {size * (size + 1) // 2}, got

def how():
    (device_info,) = (b for b in engine.backend_info() if b["role"] == "device")
    return {(s["collective"], s["dtype"]): (s["served"], s["backend"], s["how"]) for s in device_info["served"]}

for turn in range(3):
    once(f"f{turn}", np.float32)
    once(f"i{turn}", np.int32)
"""


def mixed(folder, text, ranks=2, device_type="fake_stream", routes=OWN, foreign=OTHERS, reads="", lacks=-1):
    env = {
        "HOROVOD_BACKEND_FOREIGN_DEVICE_SHM": str(native_program.shm_library()),
        "HOROVOD_BACKEND_FOREIGN_DEVICE_READS": reads,
        "HOROVOD_BACKEND_FOREIGN_DEVICE_LACKS": str(lacks),
    }
    foreign_device = ("foreign_device", str(native_program.backend(FOREIGN_DEVICE)))
    return device_jobs.run(
        ranks,
        folder,
        MIXED + textwrap.dedent(text),
        device_type,
        routes,
        env=env,
        foreign=dict.fromkeys(foreign, foreign_device),
    )


def said(output):
    return re.findall(r"(\w+) on fake_stream: (STAGED .*) \(said once\)", output)


def test_a_foreign_device_that_reads_the_memory(tmp_path):
    output = mixed(
        tmp_path,
        """
        assert how()["allgather", "float32"] == ("NATIVE", "foreign_device", ""), how()
        assert how()["broadcast", "int32"] == ("NATIVE", "foreign_device", "")
        assert how()["allreduce", "float32"] == ("NATIVE", "fake_stream", "")
        assert engine.backend_fact("foreign_device", "device_memory") == "fake_stream,fake_sync"
        assert engine.backend_fact("fake_stream", "device_memory") is None
        assert engine.backend_fact("nobody", "device_memory") is None
        """,
        reads="fake_stream,fake_sync",
    )
    assert said(output) == []


def test_a_foreign_device_that_does_not_read_it_is_staged_and_says_why(tmp_path):
    output = mixed(
        tmp_path,
        """
        why = "through host memory and foreign_device (the foreign_device reads no fake_stream memory here)"
        assert how()["allgather", "float32"] == ("STAGED", "foreign_device", why), how()
        assert how()["broadcast", "int32"] == ("STAGED", "foreign_device", why)
        assert how()["allreduce", "float32"] == ("NATIVE", "fake_stream", "")
        """,
        ranks=3,
    )
    assert sorted(coll for coll, _ in said(output)) == ["allgather", "broadcast"]
    assert all("(the foreign_device reads no fake_stream memory here)" in text for _, text in said(output))


def test_a_foreign_device_that_reads_some_types(tmp_path):
    mixed(
        tmp_path,
        """
        assert how()["allgather", "float32"] == ("NATIVE", "foreign_device", ""), how()
        assert how()["allgather", "int32"] == ("EMULATED", "foreign_device", "its bytes as another type")
        assert how()["allreduce", "float32"][0] == "NATIVE"
        assert how()["allreduce", "int32"] == ("STAGED", "foreign_device", "through host memory and foreign_device"), how()
        """,
        routes=[],
        foreign=[0, *OTHERS],
        reads="fake_stream",
        lacks=4,
    )


@pytest.mark.parametrize("reads", ["fake_sync", ""])
def test_a_foreign_device_on_a_device_that_has_no_communicators(tmp_path, reads):
    served = "NATIVE" if reads else "STAGED"
    mixed(
        tmp_path,
        f"""
        assert {{h[0] for h in how().values()}} == {{{served!r}}}, how()
        assert {{h[1] for h in how().values()}} == {{"foreign_device"}}
        """,
        device_type="fake_sync",
        routes=[],
        foreign=[0, 2, 3, 4, 5],
        reads=reads,
    )


def test_a_backend_for_host_memory_alone_is_named_for_a_device(tmp_path):
    minimal = native_program.backend(device_jobs.BACKENDS / "minimal" / "minimal.cc")
    device_jobs.run(
        2,
        tmp_path,
        MIXED
        + textwrap.dedent("""
        why = "through host memory and minimal (it does not support fake_stream memory)"
        assert how()["allgather", "float32"] == ("STAGED", "minimal", why), how()
        """),
        routes=OWN,
        foreign={c: ("minimal", str(minimal)) for c in OTHERS},
    )
