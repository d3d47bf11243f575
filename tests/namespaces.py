"""Hosts for tests: network namespaces joined by a bridge, each with an interface eth0, addresses, routes and
abstract Unix sockets of its own. They share files, processes and the machine's name.

The fixture `hosts` (known to all tests through conftest.py) is called with a number and returns a Network. Inside a
host started with `ip netns exec`, the names of all hosts resolve. Tests that use it carry the marker netns,
which skips them where namespaces cannot be made.
"""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

_PREFIX = "hvdtest"
# What `ip netns exec NAME` shows as /etc inside.
_ETC = Path("/etc/netns")
_made = 0


def _ip(*words, check=True):
    done = subprocess.run(["ip", *map(str, words)], capture_output=True, text=True, timeout=100)
    if check and done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


class Host:
    """One namespace: its `name` and the `address` of its eth0."""

    def __init__(self, name, address):
        self.name, self.address = name, address
        self.enter = ("ip", "netns", "exec", name)

    def run(self, *words, timeout=150, **options):
        """A finished command inside; raises CalledProcessError if it fails."""
        options = {"check": True, "capture_output": True, "text": True, **options}
        return subprocess.run([*self.enter, *map(str, words)], timeout=timeout, **options)

    def start(self, *words, **options):
        """A running command inside (subprocess.Popen)."""
        return subprocess.Popen([*self.enter, *map(str, words)], **options)


class Network:
    """Hosts 0 to n-1 of one network. Also iterable and indexable, which gives the hosts."""

    def __init__(self, count):
        global _made
        _made += 1
        self._key = f"{_PREFIX}-{os.getpid()}-{_made}"
        self.bridge = f"{self._key}-x"
        net = f"10.{64 + os.getpid() // 250 % 128}.{os.getpid() % 250}"
        # A second network of one test process must not have the addresses of the first.
        first = 1 + (_made - 1) * 16 % 240
        self.hosts = [Host(f"{self._key}-{index}", f"{net}.{first + index}") for index in range(count)]

    def __iter__(self):
        return iter(self.hosts)

    def __getitem__(self, index):
        return self.hosts[index]

    def __len__(self):
        return len(self.hosts)

    def make(self):
        _ip("netns", "add", self.bridge)
        _ip("-n", self.bridge, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self.bridge, "link", "set", "bridge", "up")
        names = "".join(f"{host.address} {host.name}\n" for host in self.hosts)
        for index, host in enumerate(self.hosts):
            _ip("netns", "add", host.name)
            port = f"port{index}"
            _ip("-n", self.bridge, "link", "add", port, "type", "veth", "peer", "eth0", "netns", host.name)
            _ip("-n", self.bridge, "link", "set", port, "master", "bridge", "up")
            _ip("-n", host.name, "link", "set", "lo", "up")
            _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", host.name, "link", "set", "eth0", "up")
            (_ETC / host.name).mkdir(parents=True)
            (_ETC / host.name / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n" + names)

    def spec(self, *slots):
        """The hosts with their slots, as -H takes them."""
        return ",".join(f"{host.name}:{count}" for host, count in zip(self.hosts, slots))

    def byte_counters(self, index):
        """(sent, received): bytes on the wire of that host's eth0 so far, headers included."""
        shown = json.loads(_ip("-n", self.hosts[index].name, "-s", "-j", "link", "show", "eth0"))
        counters = shown[0]["stats64"]
        return counters["tx"]["bytes"], counters["rx"]["bytes"]

    def link_down(self, index):
        """Takes that host's interface down: the host itself notices, as its routes are gone."""
        _ip("-n", self.hosts[index].name, "link", "set", "eth0", "down")

    def unplug(self, index):
        """Loses everything from and to that host silently: its interface stays up."""
        _ip("-n", self.bridge, "link", "set", f"port{index}", "nomaster")

    def pids(self, index):
        """The processes inside that host."""
        return [int(pid) for pid in _ip("netns", "pids", self.hosts[index].name).split()]

    def remove(self):
        for name in [host.name for host in self.hosts] + [self.bridge]:
            _remove(name)


def _remove(name):
    # A process that is still inside was started by the test that made the host.
    for pid in _ip("netns", "pids", name, check=False).split():
        try:
            os.kill(int(pid), signal.SIGKILL)
        except OSError:
            pass
    _ip("netns", "delete", name, check=False)
    # The folder around it stays: tests beside this one may be about to make theirs.
    shutil.rmtree(_ETC / name, ignore_errors=True)


def _remove_leftovers():
    """What test processes left behind that were killed."""
    for line in _ip("netns", "list", check=False).splitlines():
        name = line.split()[0]
        parts = name.split("-")
        if parts[0] == _PREFIX and len(parts) == 4 and not Path("/proc", parts[1]).exists():
            _remove(name)


@pytest.fixture
def hosts():
    """hosts(n): a Network of n hosts, gone after the test."""
    networks = []
    _remove_leftovers()

    def make(count):
        networks.append(Network(count))
        networks[-1].make()
        return networks[-1]

    try:
        yield make
    finally:
        for network in networks:
            network.remove()
