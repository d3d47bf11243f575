"""Jobs with HOROVOD_TLS=1 on several hosts: every connection between them is encrypted, and bytes of another program on the
network end the job."""

import os
import socket

import numpy as np
import pytest

import hvd_core as hvd
from harness.rank import meet
from hvd_core._runtime import current_job

ENV = {"HOROVOD_TLS": "1"}


@pytest.mark.ranks(4, env={**ENV, "HOROVOD_SIMULATED_HOSTS": "0,1,0,1"})
def test_operations_between_hosts():
    world = current_job.world()
    between = [link for link in world.links if world.hosts[link.peer] != world.hosts[world.rank]]
    assert all(link.encrypted for link in between)
    assert not any(getattr(link, "encrypted", False) for link in world.links if link not in between)
    rank, size = hvd.rank(), hvd.size()
    for count in (1, 1000, 300_001):
        got = hvd.allreduce(np.full(count, rank, np.float32), op=hvd.Sum, name=f"sum {count}")
        assert (got == sum(range(size))).all()
        got = hvd.allgather(np.full((rank + 1, count), rank, np.int32), name=f"all {count}")
        assert np.array_equal(got[:, 0], [one for one in range(size) for _ in range(one + 1)])


def sockets():
    """The connected internet sockets of this process: {descriptor: (own end, other end)}."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as sock:
                if sock.family == socket.AF_INET and sock.type == socket.SOCK_STREAM:
                    found[int(name)] = sock.getsockname(), sock.getpeername()
        except OSError:
            continue
    return found


@pytest.mark.ranks(2, env={**ENV, "HOROVOD_SIMULATED_HOSTS": "0,1"}, init=None)
def test_bytes_that_another_program_puts_between_the_data():
    before = sockets()
    hvd.init()
    hvd.allreduce(np.ones(3), name="a")
    meet("up")
    world = current_job.world()
    store = world.store.address.rpartition(":")[2]
    control = [link.sock_fd for link in world.links]
    data = [
        fd
        for fd, ends in sockets().items()
        if fd not in before and fd not in control and store not in [str(port) for _, port in ends]
    ]
    assert len(data) == 1
    if hvd.rank() == 1:
        os.write(data[0], b"\x20\0\0\0" + bytes(48))
    with pytest.raises(hvd.HorovodInternalError, match=r"rank 1 \(.*were changed on the way"):
        for step in range(3):
            hvd.allreduce(np.ones(100_000), name=f"b{step}")
