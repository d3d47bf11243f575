"""The hosts made of namespaces: that they are apart where hosts are, and can be cut off."""

import subprocess
from pathlib import Path

import pytest

import host_programs
from launchers import program_words
from namespaces import Network

pytestmark = [pytest.mark.netns, pytest.mark.timeout(200)]


def connects(host, target):
    done = host.run(*program_words(host_programs.send, target.name, 1), check=False)
    return "refused" in done.stderr


def test_bytes_between_hosts_are_counted(hosts):
    network = hosts(3)
    server = network[1].start(*program_words(host_programs.receive), stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout.readline() == "ready\n"
        before = [network.byte_counters(index) for index in range(3)]
        network[0].run(*program_words(host_programs.send, network[1].name, 1_000_000))
        assert server.stdout.readline() == "1000000\n"
        after = [network.byte_counters(index) for index in range(3)]
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
    sent, received = after[0][0] - before[0][0], after[1][1] - before[1][1]
    assert 1_000_000 < sent < 1_200_000
    assert 1_000_000 < received < 1_200_000
    assert after[2][0] - before[2][0] < 10_000


def test_abstract_sockets_are_apart(hosts):
    network = hosts(2)
    holders = [
        host.start(
            *program_words(host_programs.hold_an_abstract_socket),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for host in network
    ]
    for holder in holders:
        said, _ = holder.communicate(timeout=60)
        assert said == "bound\n"


@pytest.mark.parametrize("cut", [Network.link_down, Network.unplug])
def test_a_host_can_be_cut_off(hosts, cut):
    network = hosts(3)
    assert connects(network[0], network[1]) and connects(network[2], network[1])
    cut(network, 1)
    assert not connects(network[0], network[1])
    assert connects(network[0], network[2])


def test_nothing_stays(hosts):
    network = hosts(2)
    inside = network[1].start("sleep", "600")
    assert network[0].name in subprocess.check_output(["ip", "netns", "list"], text=True)
    network.remove()
    assert inside.wait(60) == -9
    assert network[0].name not in subprocess.check_output(["ip", "netns", "list"], text=True)
    assert not Path("/etc/netns", network[0].name).exists()
