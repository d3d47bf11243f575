"""Several hosts: network namespaces joined by a cable, each with its own abstract sockets and addresses."""

import os
import subprocess
import sys

import pytest

from bootstrap_job import STORE_PROGRAM, check_healthy, environment, reports, start_rank
from hvd_core._base.auth import new_secret

pytestmark = [pytest.mark.netns, pytest.mark.timeout(120)]


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


@pytest.fixture
def two_hosts():
    """Names of two namespaces whose addresses are 10.213.<n>.1 and .2, and that n."""
    number = os.getpid() % 250
    names = [f"hvd-{os.getpid()}-{end}" for end in "ab"]
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", names[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for end, name in enumerate(names, 1):
            ip("-n", name, "address", "add", f"10.213.{number}.{end}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
        yield names, f"10.213.{number}.1"
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


@pytest.fixture
def store(two_hosts):
    """A store in the first namespace, as the launcher there would run it."""
    names, address = two_hosts
    secret = new_secret()
    server = subprocess.Popen(
        ["ip", "netns", "exec", names[0], sys.executable, STORE_PROGRAM, address],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    server.stdin.write(secret.hex() + "\n")
    server.stdin.flush()
    yield server.stdout.readline().strip(), secret
    server.stdin.close()
    server.wait(20)
    server.stdout.close()


def run_job(two_hosts, store, homes, *options, **extra):
    size = len(homes)
    names, _ = two_hosts
    return reports(
        [
            start_rank(rank, size, *store, *options, prefix=("ip", "netns", "exec", names[home]), **extra)
            for rank, home in enumerate(homes)
        ]
    )


@pytest.mark.parametrize("homes", [[0, 0, 1, 1], [0, 1, 0, 1], [1, 0, 0]], ids=str)
def test_shared_memory_inside_and_tcp_across(two_hosts, store, homes):
    worlds = check_healthy(run_job(two_hosts, store, homes), len(homes), "horovodrun")
    # Hosts are numbered by first rank, whichever namespace that is.
    expected = [int(home != homes[0]) for home in homes]
    for rank, world in enumerate(worlds):
        assert world["hosts"] == expected
        assert world["local_size"] == expected.count(expected[rank])
        assert world["local_rank"] == expected[:rank].count(expected[rank])
        assert world["cross_rank"] == (expected[rank] if world["cross_size"] == 2 else 0)
        for kind, peer, _, _ in world["links"]:
            assert kind == ("shm" if expected[peer] == expected[rank] else "tcp")


def test_equal_hints_on_two_hosts_are_found_out_by_trying(two_hosts, store):
    worlds = run_job(two_hosts, store, [0, 0, 1, 1], "same-hints")
    worlds = check_healthy(worlds, 4, "horovodrun")
    assert worlds[0]["hosts"] == [0, 0, 1, 1]
    # The two that could not reach rank 0 found each other.
    assert [link[:2] for link in worlds[3]["links"]] == [["shm", 2]]
