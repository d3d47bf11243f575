"""Hosts, hostfiles, and which rank goes where."""

import socket

import pytest

from horovod._runner.elastic_discovery import HostDiscoveryScript
from horovod._runner.hosts import (
    HostInfo,
    check_interfaces,
    get_host_assignments,
    is_local,
    merge_hosts,
    parse_host_files,
    parse_hosts,
)


def test_hosts_are_parsed():
    assert parse_hosts("worker-0:2,worker_1.example.com:10") == [
        HostInfo("worker-0", 2),
        HostInfo("worker_1.example.com", 10),
    ]


@pytest.mark.parametrize("text", ["", "a", "a:", "a:x", "a:2,", "a:2 b:2", "::1:2", "a:-1"])
def test_wrong_hosts_are_refused(text):
    with pytest.raises(
        ValueError, match="Invalid host input, please make sure it has format as : worker-0:2,worker-1:2"
    ):
        parse_hosts(text)


def test_hostfile_with_comments_and_blank_lines(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# the big ones\n\nalpha slots=4\nbeta   slots = 2  # two broken cards\ngamma\n")
    assert parse_host_files(file) == "alpha:4,beta:2,gamma:1"


@pytest.mark.parametrize("text", ["alpha 4\n", "alpha slots=x\n", "alpha slots\n"])
def test_wrong_hostfile_names_the_line(tmp_path, text):
    file = tmp_path / "hosts"
    file.write_text("# comment\n" + text)
    with pytest.raises(ValueError, match="hosts, line 2: expected 'HOST slots=N', 'HOST:N' or 'HOST', found"):
        parse_host_files(file)


def test_hostfiles_of_other_launchers(tmp_path):
    """Intel MPI, MPICH and mpi-operator write HOST:N, Open MPI max_slots, batch systems a line per slot, editors of
    Windows a mark in front and \\r at the ends."""
    file = tmp_path / "hosts"
    file.write_bytes(
        b"\xef\xbb\xbfalpha:4\r\nbeta:2 # two\r\ngamma slots=2 max_slots=4\r\ndelta\r\ndelta\r\n[2001:db8::1]:2\r\n"
        b"[2001:db8::2] slots=3\r\n2001:db8::3 slots=1\r\n"
    )
    text = parse_host_files(file)
    assert text == ("alpha:4,beta:2,gamma:2,delta:1,delta:1,[2001:db8::1]:2,[2001:db8::2]:3,[2001:db8::3]:1")
    hosts = parse_hosts(text)
    assert hosts[3:6] == [HostInfo("delta", 1), HostInfo("delta", 1), HostInfo("2001:db8::1", 2)]
    assert merge_hosts(hosts)[0][3] == HostInfo("delta", 2)


MISTAKES = [
    *("me@alpha slots=2", "me@alpha:2", "alpha:2222 slots=2", "alpha slots=2 port=2222", "alpha:2222:2"),
    *("2001:db8::1:2", "::1", "[alpha:2]:2"),
]


@pytest.mark.parametrize("text", MISTAKES)
def test_what_belongs_elsewhere_is_refused_with_the_place(tmp_path, text):
    file = tmp_path / "hosts"
    file.write_text(f"beta:1\n  {text}  # mine\n")
    script = HostDiscoveryScript(f"cat {file}", 1)
    for parse, where in (
        (lambda: parse_host_files(file), f"{file}, line 2: "),
        (script.find_available_hosts_and_slots, f"the host discovery script {script.script!r}, line 2: "),
    ):
        with pytest.raises(ValueError) as caught:
            parse()
        assert where in str(caught.value) and f"found '{text}  # mine'" in str(caught.value)
        assert "in brackets" in str(caught.value) and "~/.ssh/config" in str(caught.value)
    with pytest.raises(ValueError, match="Invalid host input") as caught:
        parse_hosts(f"beta:1,{text}")
    assert f"Found {text!r}. An address of IPv6" in str(caught.value)


def test_a_discovery_script_prints_the_lines_of_a_hostfile():
    script = HostDiscoveryScript("printf 'alpha:2\\nbeta slots=3\\n[2001:db8::1]:1\\ngamma\\ngamma\\n'", 4)
    assert script.find_available_hosts_and_slots() == {"alpha": 2, "beta": 3, "2001:db8::1": 1, "gamma": 8}


def test_a_hostfile_in_another_encoding(tmp_path):
    file = tmp_path / "hosts"
    file.write_bytes("alpha slots=2\n".encode("utf-16"))
    with pytest.raises(ValueError, match="hosts is not a text in UTF-8"):
        parse_host_files(file)


def test_empty_hostfile(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("\n# empty\n")
    with pytest.raises(ValueError, match="names no host"):
        parse_host_files(file)


def test_assignments_go_host_by_host_and_cross_counts_hosts_with_that_local_rank():
    slots = get_host_assignments(parse_hosts("a:3,b:1,c:2"), 6)
    assert [s.to_response_string() for s in slots] == [
        # rank, size, local rank, local size, cross rank, cross size
        "0,6,0,3,0,3",
        "1,6,1,3,0,2",
        "2,6,2,3,0,1",
        "3,6,0,1,1,3",
        "4,6,0,2,2,3",
        "5,6,1,2,1,2",
    ]
    assert [s.hostname for s in slots] == list("aaabcc")


def test_fewer_processes_than_slots():
    slots = get_host_assignments(parse_hosts("a:2,b:2,c:2"), 3)
    assert [(s.hostname, s.local_size, s.cross_size) for s in slots] == [
        ("a", 2, 2),
        ("a", 2, 1),
        ("b", 1, 2),
    ]


def test_most_processes():
    assert len(get_host_assignments(parse_hosts("a:2,b:8"), 2, 5)) == 5
    assert len(get_host_assignments(parse_hosts("a:2,b:1"), 2, 5)) == 3


def test_too_few_slots():
    with pytest.raises(
        ValueError, match=r"Requested more processes \(4\) than there are available slots \(3\)"
    ):
        get_host_assignments(parse_hosts("a:2,b:1"), 4)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "127.0.0.7", socket.gethostname()])
def test_this_machine(name):
    assert is_local(name)


def test_another_machine():
    assert not is_local("192.0.2.1")  # reserved for documentation
    # Perhaps a name that only ssh's configuration knows.
    assert not is_local("no-such-host.invalid")


def test_each_host_is_there_once():
    assert merge_hosts(parse_hosts("localhost:2,127.0.0.1:1")) == ([HostInfo("localhost", 3)], "localhost")
    merged = [HostInfo("192.0.2.1", 5), HostInfo("127.0.0.1", 2), HostInfo("198.51.100.1", 1)]
    text = "192.0.2.1:2,127.0.0.1:1,198.51.100.1:1,localhost:1,192.0.2.1:3"
    assert merge_hosts(parse_hosts(text)) == (merged, "127.0.0.1")
    assert merge_hosts(parse_hosts("192.0.2.1:1")) == ([HostInfo("192.0.2.1", 1)], None)


def test_unknown_interface():
    check_interfaces(["lo"])
    with pytest.raises(ValueError, match=r"no network interface 'nope0' on this machine; there are .*lo"):
        check_interfaces(["lo", "nope0"])
