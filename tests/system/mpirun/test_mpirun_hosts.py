"""mpirun across hosts, which are network namespaces with names of their own."""

import re
import stat

import pytest

import mpirun_ranks
from launchers import Launcher, mpi_library, program_words

pytestmark = [pytest.mark.mpi, pytest.mark.netns, pytest.mark.timeout(400)]

NAMED = ("unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"')


@pytest.fixture
def cluster(hosts, tmp_path, mpirun):
    """Two hosts; what it starts runs on the first one."""
    network = hosts(2)
    shell = tmp_path / "shell"
    # An environment as empty as a login's.
    shell.write_text(
        '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1; shift\n'
        'exec env -i HOME=/ PATH=/usr/sbin:/usr/bin:/sbin:/bin HVD_TEST_MARK="$HVD_TEST_MARK" ip netns exec $host '
        'unshare --uts sh -c "hostname $host; $*"\n'
    )
    shell.chmod(shell.stat().st_mode | stat.S_IXUSR)
    made = Launcher(tmp_path, (*network[0].enter, *NAMED, network[0].name))
    # With --oversubscribe, Open MPI would put all ranks on the first host.
    made.network, made.mpirun = network, [word for word in mpirun if word != "--oversubscribe"]
    made.open_mpi = len(mpirun) > 1
    made.remote = ["--mca", "plm_rsh_agent", str(shell)] if made.open_mpi else ["-launcher-exec", str(shell)]
    yield made
    made.clean_up()


def lines(output):
    found = (re.search(r"sum (.*)$", line) for line in output.splitlines())
    return sorted((match[1].split() for match in found if match), key=lambda words: words[1])


def test_horovodrun_mpi(cluster):
    """The store's address comes from the environment only, rank and size from MPI."""
    first, second = cluster.network
    path = {"PATH": f"{cluster.mpirun[0].rpartition('/')[0]}:{cluster.environment()['PATH']}"}
    options = ["--mpi", "-np", 3, "-H", cluster.network.spec(2, 1), f"--mpi-args={' '.join(cluster.remote)}"]
    words = program_words(mpirun_ranks.report_place)
    done = cluster.run(*options, "--network-interfaces", "eth0", *words, env=path)
    assert done.returncode == 0, done.stdout + done.stderr
    made = lines(done.stdout)
    assert [words[:4] for words in made] == [
        ["6.0", "0", "0", "0"],
        ["6.0", "1", "1", "0"],
        ["6.0", "2", "0", "1"],
    ], made
    assert [words[4] for words in made] == [first.name, first.name, second.name]
    assert all(words[5].startswith(f"tcp://{first.address}:") for words in made)
    assert cluster.wait_for_none() == []


@pytest.mark.slow
def test_mpirun_and_the_variables_of_the_shell(cluster):
    """Open MPI passes the variables to other hosts with -x, MPICH by itself."""
    pytest.importorskip("mpi4py", reason="mpi4py brings ranks of several hosts together")
    _, second = cluster.network
    env = cluster.environment({"HOROVOD_BACKEND": "tcp", "MPI4PY_LIBMPI": mpi_library(cluster.mpirun)})
    needed = ["PYTHONPATH", "MPI4PY_LIBMPI"]
    where = cluster.network.spec(2, 1)
    flag = ["-H", where] if cluster.open_mpi else ["-hosts", where, "-iface", "eth0"]

    def run(*names, **more):
        words = [word for name in names for word in ("-x", name)] if cluster.open_mpi else []
        ranks = program_words(mpirun_ranks.report_place)
        job = cluster.start_command(
            [*cluster.enter, *cluster.mpirun, *cluster.remote, "-np", "3", *flag, *words, *ranks],
            env | more,
        )
        out, err = (data.decode() for data in job.communicate(timeout=180))
        return job.returncode, out, err

    code, out, err = run(*needed)
    if cluster.open_mpi:
        assert code != 0, out + err
        text = f"HOROVOD_BACKEND is unset on rank 2 ({second.name}) and set on the others.  fix: mpirun -x"
        assert err.count(text) == 3, out + err
        code, out, err = run(*needed, "HOROVOD_BACKEND")
    assert code == 0, out + err
    assert [words[0] for words in lines(out)] == ["6.0"] * 3, out + err
    # MPI would carry the secret of an encrypted job in the clear.
    code, out, err = run(*needed, "HOROVOD_BACKEND", "HOROVOD_TLS", HOROVOD_TLS="1")
    assert code != 0, out + err
    assert err.count("HOROVOD_TLS=1: the job's secret would be sent to other hosts over MPI") == 3, out + err
