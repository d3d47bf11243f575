"""The parts of elastic jobs one by one: discovery scripts, cool-downs, the channel, the number of a world."""

import json
import socket
import threading
import time

import pytest

from horovod._runner import elastic_discovery
from horovod._runner.elastic_discovery import (
    Discovery,
    FixedHosts,
    HostDiscovery,
    HostDiscoveryScript,
    HostNames,
)
from horovod._runner.elastic_driver import host_source
from horovod._runner.elastic_membership import Enter, Leave, Membership, Phase, Update
from horovod._runner.elastic_workers import Chaos, Cooldown
from horovod._runner.event_loop import EventLoop
from horovod._runner.launch_spec import LaunchSpec
from horovod.common.elastic import _sync_is_needed
from horovod.common.exceptions import HostsUpdatedInterrupt
from horovod.runner.elastic import discovery as names
from horovod.runner.launch import parse_args
from hvd_core._bootstrap.driver_channel import DriverChannel, LeftJob
from hvd_core._bootstrap.launchers.identity import identify


def asked(source, answers, limit_s=30.0):
    """What Discovery reports until it has given so many answers."""
    loop, found, failed = EventLoop(), [], []
    discovery = Discovery(source, loop, None, found.append, failed.append, limit_s)
    deadline = time.monotonic() + 120
    try:
        while len(found) + len(failed) < answers:
            assert time.monotonic() < deadline
            discovery.advance(time.monotonic())
            loop.turn(time.monotonic() + 0.05)
    finally:
        discovery.close()
        assert len(loop.selector.get_map()) == 1  # its own descriptor
        loop.close()
    return found, failed


def test_a_script_prints_hosts_and_slots():
    assert asked(HostDiscoveryScript("printf 'a:2\\n\\nb:1\\n'"), 1) == ([{"a": 2, "b": 1}], [])
    assert asked(HostDiscoveryScript("echo a", slots=4), 1) == ([{"a": 4}], [])
    assert HostDiscoveryScript("echo a:3").find_available_hosts_and_slots() == {"a": 3}
    assert asked(HostDiscoveryScript("printf 'a\\na:2\\nb:1\\na\\n'", slots=1), 1) == ([{"a": 4, "b": 1}], [])
    assert asked(FixedHosts({"a": 1}), 1) == ([{"a": 1}], [])
    assert names.HostDiscoveryScript is HostDiscoveryScript


def test_the_slots_of_a_host_that_is_listed_twice_add_up(tmp_path):
    """As in static jobs: a batch system's file of nodes has a line for each slot."""
    nodes = tmp_path / "nodes"
    nodes.write_text("a\nb\na\nb\nb\n")
    for given, slots in (
        (["-H", "localhost:2,b:1,localhost:2"], {"localhost": 4, "b": 1}),
        (["-hostfile", str(nodes)], {"a": 2, "b": 3}),
    ):
        args = parse_args(["-np", "4", "--min-np", "2", *given, "true"])
        assert (
            host_source(LaunchSpec.from_options(args, args.command)).find_available_hosts_and_slots() == slots
        )


@pytest.mark.parametrize(
    "script, says",
    [
        ("echo problem >&2; exit 3", "ended with status 3: problem"),
        ("exit 4", "ended with status 4: it printed no error"),
        ("echo a", "'HOST' with --slots-per-host, found 'a'."),
        ("echo a:b", "line 1: expected 'HOST slots=N', 'HOST:N'"),
        ("yes a:1", "more than a megabyte"),
    ],
)
def test_a_script_that_fails_says_why(script, says):
    found, failed = asked(HostDiscoveryScript(script), 1)
    assert found == [] and says in failed[0]


def test_a_script_has_answered_when_it_has_ended_whatever_holds_its_output(tmp_path):
    running = tmp_path / "running"
    running.touch()
    leaves_a_process = f"(while [ -e {running} ]; do sleep 0.1; done) & echo a:1"
    try:
        assert asked(HostDiscoveryScript(leaves_a_process), 1) == ([{"a": 1}], [])
    finally:
        running.unlink()
    assert asked(HostDiscoveryScript("echo a:1; exec >&- 2>&-; sleep 1.2"), 1) == ([{"a": 1}], [])


def test_a_script_that_hangs_is_ended_and_asked_again(tmp_path):
    """The second call answers. The first one has written the process that it waits for."""
    there = tmp_path / "process"
    script = f"[ -e {there} ] && echo a:1 || {{ sleep 600 & echo $! > {there}; wait; }}"
    found, failed = asked(HostDiscoveryScript(script), 2, limit_s=2)
    assert (found, failed) == ([{"a": 1}], ["the host discovery script did not end within 2 s"])
    wait_for_end(int(there.read_text()))


def wait_for_end(pid):
    deadline = time.monotonic() + 120
    while True:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] in "ZX":
                    return
        except OSError:
            return
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Slow(HostDiscovery):
    """Waits until it may answer, and fails at first."""

    def __init__(self):
        self.calls, self.may_answer = 0, threading.Event()

    def find_available_hosts_and_slots(self):
        self.calls += 1
        if self.calls == 1:
            raise KeyError("no hosts yet")
        assert self.may_answer.wait(120)
        return {"a": 2}


def test_a_source_of_the_user_may_fail_and_take_its_time():
    source, loop, found, failed = Slow(), EventLoop(), [], []
    discovery = Discovery(source, loop, None, found.append, failed.append)
    deadline = time.monotonic() + 120
    while not found:
        assert time.monotonic() < deadline
        discovery.advance(time.monotonic())
        if source.calls == 2:
            assert not found  # advance() has returned although the source waits
            source.may_answer.set()
        loop.turn(time.monotonic() + 0.05)
    assert (found, failed) == ([{"a": 2}], ["the host discovery failed (KeyError: 'no hosts yet')"])
    discovery.close()
    loop.close()


def test_the_driver_does_not_wait_while_names_are_looked_up(monkeypatch):
    """All names of this machine are one host."""
    may_answer = threading.Event()

    def slow_source(name):
        assert may_answer.wait(120)
        return "10.1.1.1"

    monkeypatch.setattr(elastic_discovery, "source_address", slow_source)
    monkeypatch.setattr(elastic_discovery, "is_local", lambda name: name in ("localhost", "alias"))
    known, loop, found = HostNames(str), EventLoop(), []
    source = FixedHosts({"localhost": 1, "alias": 2, "far": 3})
    discovery = Discovery(source, loop, known, found.append, print)
    discovery.advance(time.monotonic())
    assert found == []
    may_answer.set()
    deadline = time.monotonic() + 120
    while not found:
        assert time.monotonic() < deadline
        loop.turn(time.monotonic() + 0.05)
    assert found == [{"localhost": 3, "far": 3}]
    assert (known.here, known.source("far")) == ("localhost", "10.1.1.1")
    discovery.close()
    loop.close()


def test_a_failure_is_reported_once_and_the_script_asked_again(tmp_path):
    hosts, made = tmp_path / "hosts", tmp_path / "hosts.new"
    script = f"cat {hosts} || {{ echo a:1 > {made}; mv {made} {hosts}; false; }}"
    found, failed = asked(HostDiscoveryScript(script), 2)
    assert found == [{"a": 1}] and "No such file" in failed[0]


def test_pauses_of_a_host_double_up_to_the_limit():
    cooldown = Cooldown((2, 30))
    assert cooldown.usable_at("a", False) == 0
    for low, high in ((2, 4), (4, 6), (8, 10), (16, 18), (30, 30), (30, 30)):
        cooldown.failed("a", 100.0)
        assert 100 + low <= cooldown.usable_at("a", False) <= 100 + high
    assert cooldown.usable_at("b", False) == 0


def test_without_limits_only_the_only_host_is_used_again():
    cooldown = Cooldown(None)
    cooldown.failed("a", 5.0)
    assert cooldown.usable_at("a", False) is None
    assert 6 <= cooldown.usable_at("a", True) <= 7


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    channel = DriverChannel(theirs.detach())
    ours.settimeout(60)
    yield ours, channel
    ours.close()


def said(sock):
    return [json.loads(line) for line in sock.recv(65536).splitlines()]


def test_a_worker_asks_for_a_place_and_reads_updates(ends):
    sock, channel = ends
    sock.sendall(b'{"kind": "update"}\n{"kind": "enter", "env": {"HOROVOD_EPOCH": "3"}, "sync": true}\n')
    channel.commits, channel.updated = 4, True
    place = channel.enter()
    assert (place.world, place.sync) == (3, True)
    assert said(sock) == [{"kind": "ready", "commits": 4, "updated": True}]
    assert not channel.updated
    assert not channel.update_wanted()  # the update was about the world before
    sock.sendall(b'{"kind": "up')
    assert not channel.update_wanted()
    sock.sendall(b'date"}\n')
    assert channel.update_wanted() and channel.update_wanted()
    channel.up()
    channel.done()
    assert said(sock) == [{"kind": "up"}, {"kind": "done"}]


@pytest.mark.parametrize(
    "end", [lambda sock: sock.sendall(b'{"kind": "leave"}\n'), lambda sock: sock.close()]
)
def test_a_worker_that_is_not_needed_ends_with_0(ends, end):
    sock, channel = ends
    end(sock)
    with pytest.raises(LeftJob) as left:
        channel.enter()
    assert left.value.code == 0


def test_the_number_of_a_world_is_told():
    place = {
        "HOROVOD_RANK": "0",
        "HOROVOD_SIZE": "2",
        "HOROVOD_STORE": "tcp://h:1",
        "HOROVOD_SECRET_KEY": "0" * 64,
    }
    assert identify(place).epoch == 0
    assert identify({**place, "HOROVOD_EPOCH": "7"}).epoch == 7
    with pytest.raises(ValueError, match="HOROVOD_EPOCH"):
        identify({**place, "HOROVOD_EPOCH": "x"})


def test_a_process_that_comes_later_numbers_its_init_alike(monkeypatch):
    from hvd_core._bootstrap import rendezvous
    from hvd_core._bootstrap.rendezvous import launcher_store

    place = {
        "HOROVOD_RANK": "0",
        "HOROVOD_SIZE": "2",
        "HOROVOD_STORE": "tcp://h:1",
        "HOROVOD_SECRET_KEY": "0" * 64,
    }

    def numbers(*worlds):
        monkeypatch.setattr(launcher_store, "_counts", {})
        environs = [{**place, "HOROVOD_EPOCH": str(world)} for world in worlds]
        return [rendezvous.find_store(identify(environ), environ, None)[1].epoch for environ in environs]

    assert numbers(1, 2, 4, 4)[2:] == numbers(4, 4)
    assert numbers(0, 0) == [1, 2]


def membership(hosts, least=1, most=9):
    made = Membership(least, most)
    for number, host in enumerate(hosts):
        made.add(number, host)
    commands = [made.ready(number, 0, False) for number in range(len(hosts))][-1]
    assert [type(command) for command in commands] == [Enter]
    for number in commands[0].members:
        made.up(number)
    assert made.phase is Phase.RUNNING
    return made, commands[0].members


def test_ranks_of_a_host_stand_together():
    made, members = membership("abab")
    assert members == (0, 2, 1, 3)
    made.died(0, 137)
    for number in (1, 2):
        made.ready(number, 5 if number == 1 else 4, False)
    assert made.ready(3, 4, False) == [Enter(2, (1, 3, 2), True)]  # 1 has the newest commit


def test_members_that_left_alike_need_no_state():
    made, _ = membership("aaa")
    assert made.want([0, 1]) == [Update(1, (0, 1, 2))]
    made.ready(0, 3, True)
    made.ready(1, 3, True)
    assert made.ready(2, 3, True) == [Enter(2, (0, 1), False), Leave(2)]


def test_worlds_that_end_in_init_without_a_death_do_not_go_on_for_ever():
    made, _ = membership("aa")
    for world in (2, 3, 4):
        made.ready(0, 0, False)
        assert made.ready(1, 0, False) == [Enter(world, (0, 1), True)]
        made.up(0)
    made.ready(0, 0, False)
    made.ready(1, 0, False)
    assert made.phase is Phase.ENDING
    assert "3 worlds in a row have ended in init()" in made.failure.why


def test_a_survivor_with_all_agreed_commits_is_enough():
    made, _ = membership("aaa")
    made.died(2, 137)
    made.ready(0, 5, False)
    assert made.ready(1, 4, False) == [Enter(2, (0, 1), True)]
    made.died(0, 137)  # before it has sent its state
    assert made.ready(1, 4, False) == [Enter(3, (1,), True)]


def test_a_member_that_loses_its_world_after_the_first_end_has_failed():
    made, _ = membership("aa")
    made.done(0)
    assert made.ready(1, 3, False) == [Leave(1)]
    assert made.failure.number == 1 and "lost its world before it had finished" in made.failure.why


def test_a_function_that_begins_synchronizes_its_state(ends):
    sock, channel = ends
    sock.sendall(b'{"kind": "enter", "env": {"HOROVOD_EPOCH": "3"}, "sync": false}\n')
    channel.enter()
    assert _sync_is_needed(None, channel)
    assert not _sync_is_needed(HostsUpdatedInterrupt(), channel)


def test_spares_wait_for_a_slot_in_a_world():
    made, members = membership("aaa", most=2)
    assert members == (0, 1)
    made.died(1, 137)
    assert made.ready(0, 1, False) == [Enter(2, (0, 2), True)]


def test_the_end_dismisses_workers_that_wait():
    made, _ = membership("aaa", most=2)
    assert made.done(0) == [Leave(2)]
    made.died(2, 0)
    made.died(0, 0)
    made.done(1)
    assert made.died(1, 0) == [] and made.failure is None


class Kills:
    """In place of the processes: `killed` in the order of the kills."""

    def __init__(self):
        self.killed = []

    def kill(self, number):
        self.killed.append(number)


def test_chaos_leaves_one_that_holds_the_state():
    """Of four members, each of two that have received the state may be left, and none of the others."""
    left = set()
    for _ in range(200):
        made, members = membership("aaaa")
        sites = Kills()
        chaos = Chaos(1.0, sites.kill, lambda text: None)
        chaos.entered(members, True)
        chaos.has_state(2)
        for second in range(0, 20, 2):
            chaos.advance(float(second), made)
        assert len(sites.killed) == 3 == len(set(sites.killed)) and chaos.killed == set(sites.killed)
        left |= set(members) - set(sites.killed)
    assert left == {0, 2}


def test_chaos_ends_with_the_first_worker_that_has_finished():
    made, members = membership("aaa")
    sites = Kills()
    chaos = Chaos(1.0, sites.kill, lambda text: None)
    chaos.entered(members, False)
    chaos.advance(0.0, made)
    assert chaos.due() is not None and sites.killed == []
    made.done(0)
    chaos.advance(100.0, made)
    assert sites.killed == []
