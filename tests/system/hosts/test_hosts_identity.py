"""Who the ranks on several hosts are, what they inherit, and where their output goes."""

import json
import sys
import time
from pathlib import Path

import pytest

import host_programs
from launchers import program_words

pytestmark = [pytest.mark.netns, pytest.mark.timeout(300)]

RELAY = f"{sys.executable} {Path(__file__).with_name('relay.py')} {{host}}"


def who(made):
    return (sys.executable, Path(__file__).with_name("identity_rank.py"))


def reports(done):
    """What each rank printed as JSON, in rank order; every line must have its prefix."""
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines(), key=lambda line: int(line[1 : line.index("]")]))
    for rank, line in enumerate(lines):
        assert line.startswith(f"[{rank}]<stdout>:")
    return [json.loads(line.partition(">:")[2]) for line in lines]


@pytest.mark.parametrize("slots", [(2, 2), (2, 1), (1, 2), (1, 2, 1)], ids=str)
def test_ranks_know_their_place_and_find_each_other(cluster, slots):
    made = cluster(*slots)
    homes = [host for host, count in enumerate(slots) for _ in range(count)]
    ranks = reports(made.run("-np", len(homes), *who(made)))
    assert len(ranks) == len(homes)
    for rank, (report, home) in enumerate(zip(ranks, homes)):
        local_rank = homes[:rank].count(home)
        column = [host for host, count in enumerate(slots) if count > local_rank]
        told, found = report["told"], report["found"]
        expected = (rank, len(homes), local_rank, slots[home], column.index(home), len(column))
        assert tuple(found.values()) == (*expected, homes)
        names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
        assert tuple(int(told[name]) for name in names) == expected
        assert told["HOSTNAME"] == made.network[home].name
        for kind, peer in report["links"]:
            assert kind == ("shm" if homes[peer] == home else "tcp")


def test_the_store_is_at_the_address_that_the_hosts_reach(cluster):
    made = cluster(1, 1)
    for report in reports(made.run("-np", 2, *who(made))):
        assert report["told"]["STORE"].startswith(f"tcp://{made.network[0].address}:")


def test_a_named_interface_is_where_the_store_is(cluster, hosts):
    network = hosts(2)
    network[0].run("ip", "address", "add", "10.251.0.1/24", "dev", "lo")
    network[1].run("ip", "route", "add", "10.251.0.0/24", "via", network[0].address)
    made = cluster(1, 1, network=network)
    for env, options in (({}, ("--network-interfaces", "lo")), ({"HOROVOD_GLOO_IFACE": "lo"}, ())):
        # The first address of lo is no use to other hosts: they say so.
        done = made.run("-np", 2, *options, *who(made), env=env)
        assert done.returncode == 1
        assert "it does not reach the launcher at tcp://127.0.0.1:" in done.stderr
    network[0].run("ip", "link", "add", "second", "type", "bridge")
    network[0].run("ip", "address", "add", "10.252.0.1/24", "dev", "second")
    network[0].run("ip", "link", "set", "second", "up")
    network[1].run("ip", "route", "add", "10.252.0.0/24", "via", network[0].address)
    for env, options in (({}, ("--network-interfaces", "second")), ({"HOROVOD_GLOO_IFACE": "second"}, ())):
        for report in reports(made.run("-np", 2, *options, *who(made), env=env)):
            assert report["told"]["STORE"].startswith("tcp://10.252.0.1:")


def test_the_store_of_a_local_job_is_at_loopback(cluster):
    made = cluster(2, 0)
    for report in reports(made.run("-np", 2, *who(made))):
        assert report["told"]["STORE"].startswith("tcp://127.0.0.1:")


def test_all_ranks_may_be_elsewhere(cluster, hosts, tmp_path):
    network = hosts(3)
    made = cluster(0, 1, 1, network=network)
    ranks = reports(made.run("-np", 2, *who(made)))
    assert [report["told"]["HOSTNAME"] for report in ranks] == [network[1].name, network[2].name]
    # Not even its Python has to be here.
    done = made.run("-np", 2, "--remote-python", sys.executable, "sh", "-c", "echo $HOROVOD_RANK")
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>:0", "[1]<stdout>:1"]


def test_the_environment_goes_along(cluster):
    made = cluster(1, 1, shell=RELAY)
    odd = ["a b", "'", '"$X"', "", "\\", "ü"]
    env = {
        "MINE": "1 = 2\n'",
        "HOME": "/near/home",
        "SSH_TTY": "/dev/near",
        "HOSTNAME": "near",
        "BASH_FUNC_x%%": "() {",
    }
    words = program_words(host_programs.print_environment, *odd)
    process = made.start("-np", 2, *words, env={**env, "SOME_VISIBLE_DEVICES": "3"})
    out, err = process.communicate(timeout=150)
    assert process.returncode == 0, err
    lines = dict(line.split(b"<stdout>:") for line in out.splitlines())
    near, far = json.loads(lines[b"[0]"]), json.loads(lines[b"[1]"])
    assert near[0]["MINE"] == far[0]["MINE"] == "1 = 2\n'"
    assert (near[0]["HOME"], far[0]["HOME"]) == ("/near/home", "/far/home")
    assert near[0]["SOME_VISIBLE_DEVICES"] == "3"
    assert near[0]["PATH"] == far[0]["PATH"] and near[0]["PYTHONPATH"] == far[0]["PYTHONPATH"]
    assert (
        not {"SSH_TTY", "HOSTNAME", "SOME_VISIBLE_DEVICES", "BASH_FUNC_x%%", "PYTHONSAFEPATH"} & far[0].keys()
    )
    assert "BASH_FUNC_x%%" not in near[0]
    assert far[0]["PWD"] == far[1] == near[1] == str(made.folder)
    assert near[2] == far[2] == odd
    assert near[3] and far[3]


def test_output_comes_unchanged_and_into_files(cluster):
    made = cluster(1, 2)
    process = made.start_python(3, host_programs.print_odd_bytes, "--output-filename", "logs")
    out, err = process.communicate(timeout=150)
    assert process.returncode == 0
    for rank in range(3):
        text = b"[%d]<stdout>:" % rank
        # A carriage return begins no new line: the bar that it redraws has one prefix.
        assert text + b"bytes \xff of %d\rsecond\n" % rank in out
        assert text + "grüße\n".encode() in out
        assert b"[%d]<stderr>:error of %d\n" % (rank, rank) in err
        folder = made.folder / "logs" / f"rank.{rank}"
        assert (folder / "stdout").read_bytes() == b"bytes \xff of %d\rsecond\n" % rank + "grüße".encode()
        assert (folder / "stderr").read_bytes() == b"error of %d\n" % rank


@pytest.mark.parametrize("shell", [RELAY, "ip netns exec {host}"], ids=["relay", "netns"])
def test_much_output_waits_for_its_reader(cluster, shell):
    """The agent holds little of it: the rank waits, and nothing is lost. The rank, whose counters are read, is an
    interpreter: a client that stands for a fork writes nothing."""
    made = cluster(0, 1, shell=shell)
    process = made.start("-np", 1, *program_words(host_programs.print_much))
    pid = made.wait_for_process("print_much")
    # No process reads: a pipe's 64 KiB, the agent's MiB and the pipes between may be full, but no more.
    made.wait_until_asleep(pid)
    with open(f"/proc/{pid}/io") as counters:
        written = int(counters.read().split("wchar:")[1].split()[0])
    assert written < 8 << 20
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0
    assert [int(line.split(b">:")[1].split()[0]) for line in out.splitlines()] == list(range(120_000))
    assert b"all said" in err


def test_a_silent_job_sleeps(cluster):
    made = cluster(1, 1)
    process = made.start_python(2, host_programs.sleep)
    ranks = [int(pid) for pid in made.wait_for(2, "ready.")]
    watched = [pid for pid in made.processes() if pid not in ranks]
    assert len(watched) == 4  # launcher, agent and two supervisors

    def ticks():
        used = 0
        for pid in watched:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            used += int(fields[11]) + int(fields[12])
        return used

    for pid in watched:
        made.wait_until_asleep(pid)
    before = ticks()
    # A supervisor or agent that polled, even at 50 Hz, would use more.
    time.sleep(3)
    assert ticks() - before <= 1
    process.terminate()
    process.communicate(timeout=100)


def test_functions_run_on_several_hosts(cluster):
    made = cluster(1, 2)
    hosts = (made.network.spec(1, 2), made.network[0].name, made.network[1].name)
    done = made.network[0].run(
        *program_words(host_programs.run_functions_with_much_data, *hosts),
        env=made.environment({"HOROVOD_REMOTE_SHELL": RELAY}),
        cwd=made.folder,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "passed" in done.stdout
    assert made.wait_for_none() == []
