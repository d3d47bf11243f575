"""The default remote shell, with a real ssh server on the other host.

The server is the machine's, the one that HVD_TEST_SSHD names, or Debian's in .venv/sshd (tests/get_debian.py).
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import host_programs
from launchers import Launcher, program_words

OWN = Path(sys.prefix) / "sshd" / "usr"
SSHD = os.environ.get("HVD_TEST_SSHD") or shutil.which(
    "sshd", path=f"{os.environ['PATH']}:/usr/sbin:{OWN}/sbin"
)
pytestmark = [
    pytest.mark.netns,
    pytest.mark.timeout(300),
    pytest.mark.skipif(SSHD is None, reason="no ssh server (sshd) was found; HVD_TEST_SSHD names one"),
    pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh client was found"),
]

PORT = 2222
CONFIG = f"""
Port {PORT}
HostKey {{folder}}/host_key
AuthorizedKeysFile {{folder}}/key.pub
StrictModes no
UsePAM no
PidFile none
"""


def etc(host, **files):
    """Files that stand for those in /etc inside of that host."""
    for name, text in files.items():
        (Path("/etc/netns") / host.name / name).write_text(text)


def with_line(path, name, line):
    lines = [old for old in Path(path).read_text().splitlines() if not old.startswith(name + ":")]
    return "\n".join([*lines, line]) + "\n"


@pytest.fixture
def cluster(hosts, tmp_path):
    """A launcher on the first of two hosts; an ssh server on the second, which also has the name `far` in the first
    one's ssh configuration."""
    network, keys, home = hosts(2), tmp_path / "keys", tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    keys.mkdir()
    for name in ("host_key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-N", "", "-t", "ed25519", "-f", keys / name], check=True)
    (keys / "config").write_text(CONFIG.format(folder=keys))
    (home / ".ssh" / "config").write_text(f"Host far\n    HostName {network[1].address}\n")
    # ssh's home is that of the user's entry; and a server without PAM refuses accounts that are locked.
    root = f"root:x:0:0:root:{home}:/bin/sh"
    etc(network[0], passwd=with_line("/etc/passwd", "root", root))
    server_user = with_line("/etc/passwd", "sshd", "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin")
    etc(network[1], passwd=server_user, shadow=with_line("/etc/shadow", "root", "root:*:19000:0:99999:7:::"))
    made_run = not os.path.exists("/run/sshd")
    if made_run:
        os.mkdir("/run/sshd", 0o755)
    log = open(tmp_path / "sshd.log", "wb")  # noqa: SIM115 (closed below)
    libraries = ":".join(map(str, OWN.glob("lib/*-linux-gnu")))
    env = {**os.environ, "LD_LIBRARY_PATH": libraries} if SSHD.startswith(str(OWN)) else None
    server = network[1].start(SSHD, "-D", "-e", "-f", keys / "config", stdout=log, stderr=log, env=env)
    launcher = Launcher(tmp_path, network[0].enter)
    launcher.network = network
    launcher.options = ("-H", network.spec(1, 1), "-p", PORT, "-i", keys / "key")
    try:
        deadline = time.monotonic() + 60
        while "listening" not in (tmp_path / "sshd.log").read_text():
            assert server.poll() is None and time.monotonic() < deadline, (tmp_path / "sshd.log").read_text()
            time.sleep(0.05)
        yield launcher
    finally:
        launcher.clean_up()
        server.kill()
        server.wait()
        log.close()
        if made_run:
            os.rmdir("/run/sshd")


def wait_for_none(launcher, seconds=60):
    assert launcher.wait_for_none(seconds) == []


def clients(launcher):
    """Process ids of the ssh clients of the job."""
    found = []
    for pid in launcher.processes():
        try:
            if Path(f"/proc/{pid}/comm").read_text() == "ssh\n":
                found.append(pid)
        except OSError:
            pass
    return found


def test_ranks_on_both_hosts(cluster):
    code = (
        "import os; print(os.environ['HOROVOD_HOSTNAME'], os.environ['HOME'], 'SSH_CONNECTION' in os.environ)"
    )
    done = cluster.python(2, code, env={"HOME": "/near"})
    assert (done.returncode, done.stderr) == (0, "")
    near, far = sorted(done.stdout.splitlines())
    assert near == f"[0]<stdout>:{cluster.network[0].name} /near False"
    # Its own home there, in what ssh made of it.
    assert far.startswith(f"[1]<stdout>:{cluster.network[1].name} /") and far.endswith(" True")
    assert "/near" not in far


@pytest.mark.slow
def test_odd_words_arrive_unchanged(cluster):
    odd = ["a b", "'", '"$HOME"', "", "\\", "*"]
    done = cluster.run("-np", 2, sys.executable, "-c", "import sys; print(sys.argv[1:])", *odd)
    assert sorted(done.stdout.splitlines()) == [f"[{rank}]<stdout>:{odd}" for rank in range(2)]


@pytest.mark.slow
def test_a_name_that_only_ssh_knows(cluster):
    cluster.options = ("-H", "localhost:1,far:1", *cluster.options[2:])
    done = cluster.run("-np", 2, "sh", "-c", "echo $HOROVOD_HOSTNAME $HOROVOD_STORE")
    assert done.returncode == 0, done.stderr
    near, far = sorted(done.stdout.splitlines())
    assert near.startswith(f"[0]<stdout>:localhost tcp://{cluster.network[0].address}:")
    assert far.startswith(f"[1]<stdout>:far tcp://{cluster.network[0].address}:")


@pytest.mark.slow
def test_a_key_that_is_not_accepted(cluster):
    other = cluster.folder / "other"
    subprocess.run(["ssh-keygen", "-q", "-N", "", "-t", "ed25519", "-f", other], check=True)
    done = cluster.run("-i", other, "-np", 2, "true")
    assert done.returncode == 1
    assert f"host '{cluster.network[1].name}': the remote shell ended with status 255" in done.stderr
    assert "Permission denied" in done.stderr


@pytest.mark.slow
def test_nobody_listens_on_the_port(cluster):
    done = cluster.run("-p", 2223, "-np", 2, "true")
    assert done.returncode == 1
    assert "port 2223: Connection refused" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_end_of_the_launcher(cluster, number):
    process = cluster.start_python(2, host_programs.sleep)
    cluster.wait_for(2, "ready.")
    process.send_signal(number)
    process.communicate(timeout=100)
    assert process.returncode == (-9 if number == signal.SIGKILL else 130)
    wait_for_none(cluster)


@pytest.mark.slow
def test_the_end_of_the_ssh_client(cluster):
    process = cluster.start_python(2, host_programs.sleep)
    cluster.wait_for(2, "ready.")
    (client,) = clients(cluster)
    os.kill(client, signal.SIGKILL)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 1
    assert f"lost the host '{cluster.network[1].name}' with ranks [1]".encode() in err
    wait_for_none(cluster)


@pytest.mark.slow
def test_a_host_that_falls_silent(cluster):
    process = cluster.start_python(2, host_programs.sleep, env={"HOROVOD_GLOO_TIMEOUT_SECONDS": "3"})
    far = int(cluster.wait_for(2, "ready.")[1])
    cluster.network.unplug(1)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 1
    assert f"lost the host '{cluster.network[1].name}' with ranks [1]".encode() in err
    os.kill(far, signal.SIGKILL)  # its own host does not know; its engine would


@pytest.mark.slow
def test_functions(cluster):
    ssh = (PORT, cluster.options[5])
    words = program_words(host_programs.run_a_function_that_multiplies, cluster.network.spec(1, 1), *ssh)
    done = cluster.network[0].run(*words, env=cluster.environment(), cwd=cluster.folder, check=False)
    assert done.stdout == "[0, 7]\n", done.stderr
