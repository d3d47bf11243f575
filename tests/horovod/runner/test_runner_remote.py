"""How commands get to other hosts, what is said on the way, and where the store listens: the parts, one by one."""

import json
import os
import shlex
import socket
import subprocess
import sys
import time

import pytest

from horovod._runner import hosts
from horovod._runner.environment import remote_environment
from horovod._runner.event_loop import EventLoop
from horovod._runner.hosts import StorePlace, source_address, store_place
from horovod._runner.protocol import (
    MAGIC,
    Kind,
    memory_frames,
    output_frame,
    split_output,
    split_result,
)
from horovod._runner.remote_ranks import RemoteRanks, RemoteShell, agent_words
from horovod._runner.site import Listener, RankSpec
from hvd_core._base import sockets
from hvd_core._base.messages import FrameBuffer, frame

WORDS = ["python", "-c", "print('a b')"]


def test_default_is_ssh_that_asks_nothing():
    words = RemoteShell(connect_s=7, silence_s=30).command("h1", WORDS)
    assert words[0] == "ssh" and words[-2] == "h1"
    assert shlex.split(words[-1]) == WORDS
    options = dict(word.split("=") for word in words[2:-2:2])
    assert set(words[1:-2:2]) == {"-o"}
    assert options["PasswordAuthentication"] == options["StrictHostKeyChecking"] == "no"
    assert options["ConnectTimeout"] == "7"
    assert int(options["ServerAliveInterval"]) * int(options["ServerAliveCountMax"]) <= 30


def test_port_and_identity():
    words = RemoteShell(None, ["-p", "2222", "-i", "my key"]).command("h1", WORDS)
    assert words[-6:-1] == ["-p", "2222", "-i", "my key", "h1"]


@pytest.mark.parametrize(
    "template, expected",
    [
        ("ip netns exec {host}", ["ip", "netns", "exec", "h1", *WORDS]),
        ("kubectl exec -i {host} --", ["kubectl", "exec", "-i", "h1", "--", *WORDS]),
        ("ssh -J gate {host}", ["ssh", "-J", "gate", "h1", shlex.join(WORDS)]),
        ("/opt/bin/rsh me@{host}", ["/opt/bin/rsh", "me@h1", shlex.join(WORDS)]),
        ("on {host} 'sh -c {command}'", ["on", "h1", f"sh -c {shlex.join(WORDS)}"]),
        ("ssh '{host}' {command}", ["ssh", "h1", shlex.join(WORDS)]),
    ],
)
def test_templates(template, expected):
    assert RemoteShell(template).command("h1", WORDS) == expected


@pytest.mark.parametrize("template", ["ssh", "ssh {hosts}", "ssh {command}"])
def test_templates_without_host(template):
    with pytest.raises(ValueError, match=r"has no \{host\}: put it in the place of the host's name"):
        RemoteShell(template)


def test_a_host_is_no_option():
    with pytest.raises(ValueError, match="'-oProxyCommand' would be taken for an option"):
        RemoteShell().command("-oProxyCommand", WORDS)


def test_the_agents_command_needs_no_quoting_and_holds_no_secret():
    words = agent_words(sys.executable)
    assert words[-3:] == [sys.executable, "-m", "horovod._runner.agent"]
    assert words[0] == "env" and all(word.startswith("PYTHON") for word in words[1:-3])


def test_what_belongs_to_this_machine_stays_here():
    mine = {
        "HOSTNAME": "a",
        "SSH_AUTH_SOCK": "a",
        "HOME": "a",
        "TMPDIR": "a",
        "_": "a",
        "GPU_VISIBLE_DEVICES": "0",
    }
    job = {
        "PATH": "a",
        "PYTHONPATH": "a",
        "HOROVOD_RANK": "0",
        "OMP_NUM_THREADS": "1",
        "MY_HOME": "a",
        "LANG": "C",
    }
    assert remote_environment({**mine, **job}) == job


def test_payloads():
    [(kind, payload)] = FrameBuffer().feed(output_frame(70_000, 1, b"said"))
    assert (kind, *split_output(payload)) == (Kind.OUTPUT, 70_000, 1, b"said")
    memory = os.memfd_create("test")
    data = os.urandom((1 << 20) + 5)
    os.write(memory, data)
    frames = FrameBuffer().feed(b"".join(memory_frames(Kind.RESULT, memory, 9)))
    os.close(memory)
    assert {(kind, split_result(payload)[0]) for kind, payload in frames} == {(Kind.RESULT, 9)}
    assert b"".join(split_result(payload)[1] for _, payload in frames) == data


def test_another_version_is_refused_in_words():
    job = frame(Kind.JOB, json.dumps({"protocol": 0}).encode())
    done = subprocess.run(agent_words(sys.executable), input=job, capture_output=True, timeout=100)
    before, magic, frames = done.stdout.partition(MAGIC)
    [(kind, text)] = FrameBuffer().feed(frames)
    assert (before, magic, kind) == (b"", MAGIC, Kind.REFUSED)
    assert b"the launcher has version 0. Install the same version on all hosts" in text


def test_addresses_of_this_machine():
    assert sockets.interface_address("lo") == "127.0.0.1"
    assert sockets.interface_address("nope0") is None
    assert source_address("127.0.0.5") == "127.0.0.1"
    assert source_address("no-such-host.invalid") is None


def test_a_local_job_stays_local():
    assert store_place([], ["lo"]) == StorePlace("127.0.0.1", "127.0.0.1", {})


def known(monkeypatch, sources, interfaces):
    """This machine as a table: source address by host, address by interface."""
    monkeypatch.setattr(hosts, "source_address", sources.get)
    monkeypatch.setattr(sockets, "interface_address", interfaces.get)
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(interfaces, 1)))


def test_the_store_is_where_the_routes_start(monkeypatch):
    known(monkeypatch, {"a": "10.0.0.1", "b": "10.0.0.1"}, {})
    place = store_place(["a", "b"])
    assert place == StorePlace("10.0.0.1", "10.0.0.1", {"a": "10.0.0.1", "b": "10.0.0.1"})


def test_all_interfaces_only_when_hosts_lie_behind_different_ones(monkeypatch):
    sources = {"a": "10.0.0.1", "b": "10.1.0.1"}
    known(monkeypatch, sources, {"e1": "10.1.0.1"})
    assert store_place(["a", "b"]) == StorePlace("0.0.0.0", "10.0.0.1", sources)
    assert store_place(["a", "b"], ["e1"]).listen == "10.1.0.1"
    # Of several that are named, the one that leads there.
    known(monkeypatch, sources, {"e0": "10.0.0.1", "e1": "10.1.0.1"})
    assert store_place(["b"], ["e0", "e1"]).listen == "10.1.0.1"


def test_networks_and_addresses_name_interfaces_too(monkeypatch):
    sources = {"a": "10.0.0.1"}
    known(monkeypatch, sources, {"e0": "10.0.0.1", "e1": "10.1.0.1"})
    for text in ("10.1.0.0/16", "10.1.0.1", "e1"):
        assert store_place(["a"], [text]).listen == "10.1.0.1"
    assert store_place(["a"], ["192.168.0.0/16"]).listen == "10.0.0.1"


def test_interfaces_that_only_other_hosts_have_are_passed_over(monkeypatch):
    known(monkeypatch, {"a": "10.0.0.1"}, {"e0": "10.0.0.1"})
    assert store_place(["a"], ["ib0"]).listen == "10.0.0.1"


def test_a_host_that_only_the_remote_shell_can_find(monkeypatch):
    known(monkeypatch, {"real": "10.0.0.1"}, {"lo": "127.0.0.1", "e0": "10.9.0.1"})
    assert store_place(["alias"], resolve={"alias": "real"}.get).listen == "10.0.0.1"
    assert store_place(["alias"], resolve=str).listen == "10.9.0.1"
    known(monkeypatch, {}, {"e0": "10.0.0.1", "e1": "10.1.0.1"})
    with pytest.raises(ValueError, match=r"No address is known for alias, .* there are: e0 \(10.0.0.1\), e1"):
        store_place(["alias"])


def test_two_families_cannot_be_mixed(monkeypatch):
    known(monkeypatch, {"a": "10.0.0.1", "b": "fd00::1"}, {})
    with pytest.raises(ValueError, match=r"not all of IPv4. Name one interface"):
        store_place(["a", "b"])


class Lost(Listener):
    """Keeps what is reported."""

    def __init__(self):
        self.texts = []

    def event(self, site, event):
        self.texts.append(event["text"])


def test_the_third_request_to_stop_does_not_wait_for_a_silent_host():
    lost, begin = Lost(), time.monotonic()
    site = RemoteRanks("far", ["sleep", "60"], [RankSpec(0, ["x"], {})], {}, None)
    loop = EventLoop(lambda: [site])
    site.open(loop.selector, lost)
    site.begin()
    for _ in range(3):
        site.request("stop")
    while not site.over and time.monotonic() < begin + 15:
        loop.turn(begin + 15)
    site.close()
    loop.close()
    assert lost.texts == ["lost the host 'far' with ranks [0]: the remote shell did not answer"]
    assert time.monotonic() < begin + 15
