"""A real Slurm on two hosts: the controller and one slurmd each, as root, in network namespaces with own host names.

The programs are Debian's, which the set-up of the tests has unpacked in .venv/slurm (tests/get_debian.py). Nothing
outside of a folder of its own is used: an own munge key and socket, own ports on own addresses.
"""

import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from launchers import Launcher
from namespaces import Network

ROOT = Path(sys.prefix) / "slurm" / "usr"
LIBRARIES = next(iter((ROOT / "lib").glob("*-linux-gnu")), ROOT / "lib")
CONFIG = """
ClusterName=hvdtest
SlurmctldHost={first.name}({first.address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/run/munge.socket
PluginDir={libraries}/slurm-wlm
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
KillWait=5
{nodes}
PartitionName=all Nodes=ALL Default=YES OverSubscribe=FORCE:8 MaxTime=INFINITE State=UP
"""


class Slurm(Launcher):
    """The cluster: start() runs `srun` on its first host."""

    def __init__(self, folder, network):
        super().__init__(folder)
        self.network = network
        self.place = Path(tempfile.mkdtemp(prefix="hvd-slurm-"))  # sockets have short paths
        self.daemons = []

    def environment(self, env=None):
        return {**super().environment(), "SLURM_CONF": str(self.place / "slurm.conf"), **(env or {})}

    def start(self, *words, env=None, **options):
        """A running `srun` with these words, the program's command at their end."""
        return self.start_command(self.words(self.network[0], "srun", *words), env, **options)

    def srun(self, *words, env=None, timeout=200):
        """(exit code, output, errors) of `srun` with these words."""
        process = self.start(*words, env=env)
        out, err = process.communicate(timeout=timeout)
        return process.returncode, out.decode(), err.decode()

    def words(self, host, program, *words):
        """The command that runs a program of Slurm on a host. Slurm alone uses the unpacked libraries."""
        inside = 'hostname "$0"; exec env LD_LIBRARY_PATH="$1" "${@:2}"'
        paths = f"{LIBRARIES}:{LIBRARIES}/slurm-wlm"
        found = shutil.which(program, path=f"{ROOT}/bin:{ROOT}/sbin")
        enter = [*host.enter, "unshare", "--uts", "bash", "-c", inside, host.name, paths]
        return [*enter, found, *map(str, words)]

    def up(self):
        place, first = self.place, self.network[0]
        place.chmod(0o755)
        for name, mode in (("state", 0o755), ("run", 0o755), ("munge", 0o700)):
            (place / name).mkdir(mode)
            (place / name).chmod(mode)
        key = place / "munge" / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        nodes = [
            f"NodeName={host.name} NodeAddr={host.address} CPUs=2 RealMemory=500" for host in self.network
        ]
        text = CONFIG.format(first=first, folder=place, libraries=LIBRARIES, nodes="\n".join(nodes))
        (place / "slurm.conf").write_text(text)
        (place / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # nothing is asked of it
        files = {
            "key-file": key,
            "socket": place / "run" / "munge.socket",
            "pid-file": place / "munge" / "pid",
            "log-file": place / "munge" / "log",
            "seed-file": place / "munge" / "seed",
        }
        self._daemon(first, "munged", "-F", "--force", *(f"--{name}={file}" for name, file in files.items()))
        self._wait("munge's socket", lambda: files["socket"].exists())
        self._daemon(first, "slurmctld-wlm", "-D", "-f", place / "slurm.conf")
        for host in self.network:
            (place / f"spool-{host.name}").mkdir()
            step = ROOT / "sbin" / "slurmstepd-wlm"
            self._daemon(host, "slurmd-wlm", "-D", "-f", place / "slurm.conf", "-d", step)
        self._wait("two idle nodes", self._both_idle)

    def _both_idle(self):
        words = self.words(self.network[0], "sinfo", "-h", "-o", "%t %D")
        done = subprocess.run(words, env=self.environment(), capture_output=True, text=True, timeout=100)
        return done.stdout.strip() == "idle 2"

    def _daemon(self, host, program, *words):
        log = open(self.place / f"{program}-{host.name}.out", "wb")  # noqa: SIM115 (closed by down())
        command = self.words(host, program, *words)
        process = subprocess.Popen(command, env=self.environment(), cwd=self.folder, stdout=log, stderr=log)
        self.daemons.append((process, log))

    def _wait(self, what, come, seconds=100):
        deadline = time.monotonic() + seconds
        while not come():
            said = {log.name: Path(log.name).read_text()[-2000:] for _, log in self.daemons}
            ended = [process.args[-1] for process, _ in self.daemons if process.poll() is not None]
            assert not ended and time.monotonic() < deadline, f"{what} did not come: {ended} {said}"
            time.sleep(0.1)

    def down(self):
        self.clean_up()
        for process, log in reversed(self.daemons):
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            log.close()
        shutil.rmtree(self.place, ignore_errors=True)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """The cluster, for all tests of a module."""
    if shutil.which("slurmctld-wlm", path=f"{ROOT}/sbin") is None:
        pytest.skip(
            f"Slurm is not in {ROOT.parent}: python tests/get_debian.py unpacks it there (make test-all does)"
        )
    network = Network(2)
    network.make()
    cluster = Slurm(tmp_path_factory.mktemp("slurm"), network)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()
        network.remove()
