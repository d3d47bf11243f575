"""HOROVOD_TLS=1 between hosts: programs that read along on the network see nothing of the job's data."""

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import pytest

from host_words import rank_words

pytest.importorskip("hvd_core._core", reason="the engine is not built")
pytestmark = [pytest.mark.netns, pytest.mark.timeout(300)]

PATTERN = "<what only ranks know>"
# Of tensors; of names and records in the store; of control messages.
READABLE = {
    "data": PATTERN.encode() * 3,
    "store": b'"cores"',
    "rendezvous": b"tcp/table",
    "control": f"named {PATTERN}".encode(),
}


@contextlib.contextmanager
def reading_along(network, index, folder):
    """Yields the file that gets all packets of that host's interface."""
    file = folder / "packets"
    words = [sys.executable, Path(__file__).with_name("packets.py"), file]
    reader = network[index].start(*map(str, words), stdout=subprocess.PIPE, text=True)
    try:
        assert reader.stdout.readline() == "ready\n"
        yield file
    finally:
        reader.kill()
        reader.wait(30)
        reader.stdout.close()


def everything_in(file, network):
    """The packets so far: those before one that the first host now sends to the second."""
    mark = "the last packet that counts"
    send = f"import socket; socket.socket(type=socket.SOCK_DGRAM).sendto({mark.encode()}, ({network[1].address!r}, 9))"
    network[0].run(sys.executable, "-c", send)
    deadline = time.monotonic() + 60
    while mark.encode() not in (seen := file.read_bytes()):
        assert time.monotonic() < deadline, "the packet was not seen"
        time.sleep(0.05)
    return seen


@pytest.mark.parametrize("asked", ["0", "1"])
def test_what_a_program_on_the_network_can_read(cluster, tmp_path, asked):
    made = cluster(1, 1)
    with reading_along(made.network, 1, tmp_path) as file:
        done = made.run("-np", 2, *rank_words("send_a_pattern"), PATTERN, env={"HOROVOD_TLS": asked})
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("right") == 2
        seen = everything_in(file, made.network)
    assert len(seen) > 2 * 50_000 * len(PATTERN)
    found = {name for name, text in READABLE.items() if text in seen}
    assert found == (set() if asked == "1" else set(READABLE))


def test_collectives_over_encrypted_connections(cluster):
    done = cluster(2, 1).run("-np", 3, *rank_words("collectives"), env={"HOROVOD_TLS": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("right") == 3
