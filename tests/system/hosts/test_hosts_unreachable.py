"""The message to the user when a host cannot take part; and no other user can read the secret."""

import re
import sys
import time
from pathlib import Path

import pytest

import host_programs

pytestmark = [pytest.mark.netns, pytest.mark.timeout(300)]

RELAY = f"{sys.executable} {Path(__file__).with_name('relay.py')} {{host}}"


def fails(made, *words, env=None, options=None):
    """What horovodrun says about a job that cannot start; no rank may have run."""
    (made.folder / "ran").unlink(missing_ok=True)
    done = made.run("-np", len(made.network), *words, "touch", "ran", env=env)
    assert done.returncode == 1
    assert not (made.folder / "ran").exists()
    assert "Traceback" not in done.stderr
    assert made.wait_for_none() == []
    return done.stderr


def test_a_host_that_is_not_there(cluster):
    made = cluster(1, 1)
    made.options = ("-H", f"{made.network[0].name}:1,nowhere:1", "--remote-shell", "ip netns exec {host}")
    assert fails(made) == (
        "horovodrun: not all hosts could be reached:\n"
        "host 'nowhere': the remote shell ended with status 255 before the agent answered\n"
        '    Cannot open network namespace "nowhere": No such file or directory\n'
    )


def test_a_host_that_does_not_answer(cluster):
    made = cluster(1, 1, shell="sh -c 'echo trying {host} >&2; echo welcome; exec sleep 600'")
    before = time.monotonic()
    said = fails(made, "--start-timeout", 2)
    assert 2 <= time.monotonic() - before < 60
    assert said == (
        "horovodrun: not all hosts could be reached within 2 s (--start-timeout):\n"
        f"host '{made.network[1].name}': no answer\n    welcome\n    trying {made.network[1].name}\n"
    )


def test_a_remote_shell_that_does_not_exist(cluster):
    made = cluster(1, 1, shell="no-such-shell {host}")
    assert (
        "ended with status 127 before the agent answered\n    cannot start 'no-such-shell': No such"
        in fails(made)
    )


def test_a_python_that_does_not_exist_there(cluster):
    made = cluster(1, 1)
    said = fails(made, "--remote-python", "/nowhere/python")
    assert re.search(r"status 127 before the agent answered\n    env: .*/nowhere/python", said)
    said = fails(made, env={"HOROVOD_REMOTE_PYTHON": "/nowhere/other"})
    assert "/nowhere/other" in said


def test_a_folder_that_is_missing_there(cluster, tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    hidden = f"ip netns exec {{host}} unshare --mount sh -c 'mount -t tmpfs none {tmp_path} && cd / && exec \"$@\"' sh"
    made = cluster(1, 1, folder=folder, shell=hidden)
    said = fails(made)
    assert f"host '{made.network[1].name}': the folder {folder} cannot be entered there (No such file" in said
    assert "it must exist on every host" in said


def test_a_launcher_that_the_host_does_not_reach(cluster):
    made = cluster(1, 1)
    made.network.link_down(1)
    said = fails(made)
    assert (
        f"host '{made.network[1].name}': it does not reach the launcher at tcp://{made.network[0].address}:"
        in said
    )
    assert "--network-interfaces" in said


def test_a_remote_shell_without_standard_input(cluster):
    made = cluster(1, 1, shell="sh -c 'exec ip netns exec {host} \"$@\" < /dev/null' sh")
    assert "the remote shell must pass standard input on" in fails(made)


def test_a_talkative_login_is_no_problem(cluster):
    made = cluster(1, 1, shell="sh -c 'echo welcome to {host}; exec ip netns exec {host} \"$@\"' sh")
    done = made.run("-np", 2, "sh", "-c", "echo $HOROVOD_RANK")
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>:0", "[1]<stdout>:1"]
    assert (done.returncode, done.stderr) == (0, "")


def test_what_the_remote_shell_says_later_is_shown(cluster, tmp_path):
    says = "echo network is slow >&2; printf still >&2; touch said"
    later = f"(cd {tmp_path}; while [ ! -e ready.1 ]; do sleep 0.05; done; {says}) &"
    made = cluster(1, 1, shell=f"sh -c '{later} exec ip netns exec {{host}} \"$@\"' sh")
    rank = "touch ready.$HOROVOD_RANK; while [ ! -e said ]; do sleep 0.05; done"
    done = made.run("-np", 2, "sh", "-c", rank)
    assert done.returncode == 0
    name = made.network[1].name
    assert done.stderr == f"horovodrun: {name}: network is slow\nhorovodrun: {name}: still\n"


def test_every_host_that_fails_is_named(cluster):
    made = cluster(1, 1, 1, shell="sh -c 'echo no way to {host} >&2; exit 3'")
    said = fails(made)
    for host in list(made.network)[1:]:
        assert f"host '{host.name}': the remote shell ended with status 3" in said
        assert f"    no way to {host.name}\n" in said


def test_the_secret_is_on_no_command_line(cluster):
    made = cluster(1, 1, shell=RELAY)
    process = made.start_python(2, host_programs.sleep_when_the_secret_is_told, "--verbose")
    secrets = set(made.wait_for(2, "ready."))
    assert len(secrets) == 1
    secret = secrets.pop().encode()
    assert len(secret) == 64
    holders = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                assert secret not in (entry / "cmdline").read_bytes()
                holders += secret in (entry / "environ").read_bytes()
            except OSError:
                continue
    assert holders == 2
    process.terminate()
    out, err = process.communicate(timeout=100)
    assert secret not in out + err and b"HOROVOD_STORE=tcp://" in err
