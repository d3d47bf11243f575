"""Jobs of mpirun on two hosts: network namespaces with names of their own, reached by a remote shell."""

import pytest

from launchers import each_by_one, first_by

pytestmark = [pytest.mark.mpi, pytest.mark.netns, pytest.mark.timeout(400)]

# What ssh would do: HOST and a command for its shell. Namespaces share the machine's name unless they are given one.
SHELL = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1; shift
exec ip netns exec "$host" unshare --uts sh -c "hostname $host; $*"
"""


def across(mpi_job, network, tmp_path):
    """Words of mpirun for two ranks on each of two hosts, itself on the first."""
    shell = tmp_path / "shell"
    shell.write_text(SHELL)
    shell.chmod(0o755)
    first, second = (host.name for host in network)
    begin = [*network[0].enter, "unshare", "--uts", "sh", "-c", f'hostname {first}; exec "$@"', "sh"]
    if mpi_job.kind == "MPICH":
        return [
            *begin,
            *mpi_job.mpirun,
            "-launcher",
            "rsh",
            "-launcher-exec",
            shell,
            "-hosts",
            f"{first}:2,{second}:2",
        ]
    agent = ["--mca", "plm_rsh_agent", shell, "--mca", "btl_tcp_if_include", "eth0"]
    agent += ["--map-by", "ppr:2:node"]  # told that it may oversubscribe, it would fill the first host
    return [*begin, *mpi_job.mpirun, *agent, "-H", f"{first}:2,{second}:2"]


# One host that counts as two has the levels under Open MPI too.
@each_by_one("backend", openmpi="mpi", mpich="shm,mpi")
def test_two_hosts(mpi_job, hosts, tmp_path, backend):
    pytest.importorskip("mpi4py", reason="the ranks of mpirun meet over hosts by it")
    mpi_job.mpirun = across(mpi_job, hosts(2), tmp_path)
    done = mpi_job.run("two_hosts", size=4, HOROVOD_BACKEND=backend)
    over = {"mpi": "over mpi", "shm,mpi": "over shm x mpi"}[backend]
    assert over in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("backend", ["shm,mpi"])
@first_by("openmpi")
def test_two_simulated_hosts(mpi_job, backend):
    done = mpi_job.run("two_hosts", size=4, HOROVOD_BACKEND=backend, HOROVOD_SIMULATED_HOSTS="0,0,1,1")
    assert "over shm x mpi" in done.stdout
