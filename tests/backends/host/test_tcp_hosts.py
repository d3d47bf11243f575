"""The tcp backend between hosts (network namespaces): addresses of their own, and a host that is suddenly gone."""

import ctypes
import time

import numpy as np
import pytest

from abi_ctypes import ALLREDUCE, BARRIER, COMM_DEAD, REMOTE
from table_driver import Comm, failure

pytestmark = [pytest.mark.netns, pytest.mark.timeout(90)]
CLONE_NEWNET = 0x40000000


@pytest.fixture
def backend_name():
    return "tcp"


@pytest.fixture
def between_hosts(ranks, hosts):
    """between_hosts(size, body, ...): rank r runs in host r of a network, which is handed on as `.network`."""

    def run(size, body, *args, **options):
        network = hosts(size)

        def enter(rank):
            libc = ctypes.CDLL(None, use_errno=True)
            with open(f"/run/netns/{network[rank].name}") as namespace:
                if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")

        return ranks(size, body, network, *args, enter=enter, hosts=range(size), **options)

    return run


def sums(comm, network):
    for count in (3, 50_000, 1_000_000):
        a = np.full(count, comm.rank + 1, np.float32)
        comm.run(ALLREDUCE, [a], [a])
        assert (a == comm.size * (comm.size + 1) / 2).all()
    comm.finalize()


@pytest.mark.parametrize(
    "options", [{}, {"iface": "eth0"}, {"sockets_per_peer": 3, "iface": "10.0.0.0/8"}], ids=str
)
def test_ranks_of_three_hosts(between_hosts, options):
    between_hosts(3, sums, options=options)


def cut_off(comm, network, count, poll):
    a = np.ones(count, np.float32)
    # Rank 0 may be through with the third operation, and unplug rank 1, while its last bytes are still on their way.
    for _ in range(3 if comm.rank == 0 else 2):
        comm.run(ALLREDUCE, [a], [a])
    if comm.rank == 0:
        # From here, where `ip` is at hand: rank 1 neither sends a farewell nor does its system.
        network.unplug(1)
    started = time.monotonic()

    def until_it_fails():
        while True:
            comm.run(ALLREDUCE, [a], [a], poll=poll)

    error = failure(until_it_fails)
    assert error.code == REMOTE and error.flags & COMM_DEAD, str(error)
    assert 1 < time.monotonic() - started < 40
    return error.text


@pytest.mark.parametrize("poll", [False, True])
@pytest.mark.parametrize("count", [2, 3_000_000])
def test_a_host_that_is_gone_without_a_word(between_hosts, count, poll):
    texts = between_hosts(2, cut_off, count, poll, options={"peer_timeout_s": 3})
    assert "has not answered" in texts[0] and "10." in texts[0], texts


def waits_for_the_lost(comm, network):
    """Nothing of its own is on the way, so that only the probes can tell."""
    if comm.rank == 0:
        comm.run(BARRIER)
        assert not comm.start(BARRIER)
        time.sleep(0.2)
        network.unplug(1)
        error = failure(comm.wait)
        comm.free()
        return error.code, error.text
    comm.run(BARRIER)
    time.sleep(12)
    return None


def test_waiting_for_a_lost_host(between_hosts):
    code, text = between_hosts(2, waits_for_the_lost, options={"peer_timeout_s": 3})[0]
    assert code == REMOTE and "has not answered" in text and "option peer_timeout_s" in text


def names_who_is_missing(comm, network):
    if comm.rank == 0:
        network.unplug(1)
        comm.tell("unplugged")
    comm.await_told("unplugged")
    error = failure(Comm, comm.backend, comm.rank, comm.size, number=2, seconds=4, hosts=(0, 1))
    return error.text


def test_create_names_the_addresses_that_do_not_answer(between_hosts):
    first, second = between_hosts(2, names_who_is_missing)
    assert "rank 1 did not connect to rank 0" in first and "10." in first
    assert "rank 1 could not connect to rank 0" in second and "iface" in second
