"""`mpirun python train.py`: what clusters do. Binding, variables, users, and how a job ends when a rank does."""

import os
import re
import shlex
import shutil
import signal

import pytest

import mpirun_ranks
from launchers import first_by, program_words

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(400)]


def sums(output):
    """The ranks' lines, as lists of words, in the order of their ranks."""
    return sorted(
        (line.split() for line in output.splitlines() if line.startswith("sum")), key=lambda w: w[3]
    )


def test_script_binding_and_variables(by_mpirun):
    words = program_words(mpirun_ranks.report_cores)
    script = by_mpirun.folder / "run.sh"
    script.write_text(f"export SCRIPT=yes\n{shlex.join(words)}\n")
    options = ["--bind-to", "numa", *by_mpirun.set_variable("HOROVOD_FUSION_THRESHOLD", "1048576")]
    # Asks for a core that the ranks may not have where they are bound to one; it must not widen anything.
    done = by_mpirun.run(*options, "-np", 2, "bash", "./run.sh", env={"HOROVOD_THREAD_AFFINITY": "0,1"})
    assert done.returncode == 0, done.stdout + done.stderr
    made = sums(done.stdout)
    assert [word[:6] for word in made] == [["sum", "3.0", "3.0", str(r), str(r), "2"] for r in range(2)]
    assert [word[7:9] for word in made] == [["yes", "1048576"]] * 2


@first_by("mpich")
def test_one_core_each(by_mpirun):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("mpirun binds two ranks to a core each only where there are two")
    words = program_words(mpirun_ranks.report_cores)
    done = by_mpirun.run("--bind-to", "core", "-np", 2, *words, env={"HOROVOD_THREAD_AFFINITY": "0,0"})
    assert done.returncode == 0, done.stdout + done.stderr
    cores = [word[6] for word in sums(done.stdout)]
    assert len(set(cores)) == 2 and all("," not in one for one in cores), cores
    # One of the two ranks may not use core 0: one warning per host, and no thread is pinned.
    assert done.stderr.count("it names cores that the ranks may not use") == 1, done.stderr


@first_by("mpich")
@pytest.mark.skipif(os.getuid() != 0, reason="the other tests run as an ordinary user already")
def test_ordinary_user(by_mpirun):
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv (util-linux) is missing")
    user = 65534
    os.chown(by_mpirun.folder, user, user)
    # An ordinary user who may read root's files, to find this Python in any folder.
    may = ["--inh-caps", "-all,+dac_read_search", "--ambient-caps", "-all,+dac_read_search"]
    become = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups", *may]
    allowed = [word for word in by_mpirun.mpirun if word != "--allow-run-as-root"]
    job = by_mpirun.start_command(
        list(map(str, [*become, *allowed, "-np", 2, "env", *program_words(mpirun_ranks.report_cores)])),
        dict.fromkeys(("HOME", "TMPDIR", "PRTE_MCA_prte_tmpdir_base"), str(by_mpirun.folder)),
    )
    out, err = (data.decode() for data in job.communicate(timeout=200))
    assert job.returncode == 0, out + err
    assert [word[1] + word[9] for word in sums(out)] == [f"3.0{user}"] * 2


def slow(how):
    return pytest.param(how, marks=pytest.mark.slow)


@pytest.mark.parametrize("how", ["kill", slow("raise"), "exit 3", slow("exit 0")])
def test_end_of_a_rank(by_mpirun, how):
    # MPICH kills the survivors within milliseconds of a death by signal, Open MPI within a second, which may be too short
    # on a busy machine: they do not always get their word out.
    tries = 8
    for _ in range(tries):
        done = by_mpirun.run("-np", 2, *program_words(mpirun_ranks.rank_1_ends, *how.split()))
        said = done.stdout + done.stderr
        assert done.returncode != 0, said
        assert "went on" not in said
        assert by_mpirun.wait_for_none() == []
        # rank, host and process id of the one that has ended, from the one that has not
        died = re.search(r"rank 1 \(host \S+, pid \d+\) died", said)
        left = re.search(
            r"Horovod has been shut down.* rank 1 \(host \S+, pid \d+\) was the first to leave", said
        )
        if died if how == "kill" else left:
            break
    else:
        raise AssertionError(f"in {tries} jobs no surviving rank named the rank that had ended:\n{said}")


@pytest.mark.slow
def test_segmentation_fault(by_mpirun):
    done = by_mpirun.run("-np", 2, *program_words(mpirun_ranks.rank_1_ends, "fault"))
    assert done.returncode in (139, 128 + signal.SIGSEGV, signal.SIGSEGV), done.stderr
    assert by_mpirun.wait_for_none() == []


@first_by("openmpi")
def test_a_switch_that_only_one_rank_has(by_mpirun):
    """As on another host, to which mpirun has not carried the variable."""
    words = program_words(mpirun_ranks.print_why_init_fails)
    one = ["env", "HOROVOD_DYNAMIC_PROCESS_SETS=1", *words]
    done = by_mpirun.run("-np", 1, *one, ":", "-np", 1, *words)
    assert done.stdout.count("ranks do not agree on HOROVOD_DYNAMIC_PROCESS_SETS.") == 2, (
        done.stdout + done.stderr
    )
    assert "rank 0 (" in done.stdout and "): 1; rank 1 (" in done.stdout
    flag = "-x" if by_mpirun.kind == "Open MPI" else "-genv"
    assert done.stdout.count(f"fix: mpirun {flag} HOROVOD_DYNAMIC_PROCESS_SETS") == 2


@first_by("mpich")
def test_tuning_that_only_one_rank_has(by_mpirun):
    words = program_words(mpirun_ranks.report_cores)
    one = ["env", "HOROVOD_FUSION_THRESHOLD=4096", *words]
    done = by_mpirun.run("-np", 1, *words, ":", "-np", 1, *one)
    assert done.returncode == 0 and len(sums(done.stdout)) == 2, done.stdout + done.stderr
    text = "ranks do not agree on HOROVOD_FUSION_THRESHOLD; rank 0's value is used.  rank 0 ("
    assert done.stderr.count(text) == 1, done.stderr
