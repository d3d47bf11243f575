"""Every operation on the memory of fake devices, on real ranks: the matrix of test_matrix.py over device_face.py.

"fake_sync" has a device table only, without streams of the program's own, so that everything is staged; "fake_stream" has
communicators that read its memory: "stream" enqueues, "request" is driven. They lack 64-bit reductions, averages,
factors, float16, bool, long calls and arbitrary addresses; the engine packs, cuts, moves or composes these.
"""

import json
from pathlib import Path

import pytest

import native_program
from jobs import finish, start

BACKENDS = native_program.ROOT / "tests/backends/host"
ALL = [0, 2, 3, 4, 5]
SHORT = {"counts": [0, 1, 1023], "large": 50001, "dtypes": ["uint8", "int64", "float32", "bool", "bfloat16"]}

# Ranks, the ranks of the process set, what the device is like, and the environment.
JOBS = {
    "sync-2": (2, "1", {"type": "fake_sync", "routes": []}, {}),
    "stream-2": (2, "0", {"type": "fake_stream", "routes": ALL}, {}),
    "stream-3": (
        3,
        "0,2",
        {"type": "fake_stream", "routes": ALL},
        {"HOROVOD_BACKEND_FAKE_STREAM_MAX_COUNT": "700"},
    ),
    "request-2": (
        2,
        "1",
        {"type": "fake_stream", "routes": ALL},
        {"HOROVOD_BACKEND_FAKE_STREAM_MODE": "request"},
    ),
    # Allreduce over the communicator, the rest over the host; two levels there.
    "mixed-3": (3, "0,2", {"type": "fake_stream", "routes": [0]}, {"HOROVOD_SIMULATED_HOSTS": "0,0,1"}),
}


def run(job: str, short: bool) -> str:
    ranks, subset, device, env = JOBS[job]
    library = native_program.backend(
        BACKENDS
        / ("fake_sync/fake_sync.cc" if device["type"] == "fake_sync" else "fake_stream/fake_stream.cc")
    )
    device = {
        **device,
        **(SHORT if short else {}),
        "library": str(library),
        "native": device["type"] == "fake_stream",
    }
    env = {"HOROVOD_BACKEND_FAKE_SYNC_DELAY_US": "30", "HOROVOD_BACKEND_FAKE_STREAM_DELAY_US": "30", **env}
    program = Path(__file__).with_name("device_matrix_ranks.py")
    env["DEVICE_JOB"] = json.dumps(device)
    output = finish(start(ranks, program, env, ["--subset", subset]), timeout=280)
    assert output.count("matrix done") == ranks, output
    return output


@pytest.mark.timeout(300)
def test_device_matrix_of_a_device_that_is_copied() -> None:
    output = run("sync-2", short=True)
    assert "STAGED" in output and "NATIVE" not in output, output


@pytest.mark.timeout(300)
def test_device_matrix_of_a_device_with_streams() -> None:
    output = run("stream-2", short=True)
    for line in (
        "served: allreduce float32 Sum NATIVE fake_stream",
        "served: allreduce int64 Sum EMULATED fake_stream allgather + local reduction",
        "served: broadcast bool Sum EMULATED fake_stream its bytes as another type",
    ):
        assert line in output, output


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("job", JOBS)
def test_device_matrix_in_full(job: str) -> None:
    print(run(job, short=False))
