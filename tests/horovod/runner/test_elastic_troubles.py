"""Elastic jobs in trouble: stalls, killed launchers, shells that do not end, and ends that are no success."""

import pytest

import elastic_ranks
from launchers import program_words

pytest.importorskip("hvd_core._core", reason="the engine is not built")


def test_a_rank_that_leaves_too_early_is_no_success(launcher):
    done = launcher.python(2, elastic_ranks.leaves_too_early, "--min-np", 1)
    assert done.returncode == 1, done.stderr
    assert "process 0 lost its world before it had finished, although another one has finished" in done.stderr


@pytest.mark.parametrize("process", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_rank_that_stalls_the_job_is_replaced(launcher, process):
    """HOROVOD_ELASTIC_GRACE, its time without the end of a stalled job, is longer than the test may take."""
    env = {
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "1",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "3",
        "STOPPED": str(process),
    }
    done = launcher.python(2, elastic_ranks.is_stopped_in_a_step, "--min-np", 1, env=env)
    assert done.returncode == 0, done.stderr
    killed = f"horovodrun: process {process} has kept its world waiting until it ended, and is killed"
    assert killed in done.stderr, done.stderr
    assert "is done" in done.stdout
    assert launcher.wait_for_none() == []


def test_the_discovery_script_ends_with_a_horovodrun_that_is_killed(launcher):
    """The script's shell waits for a command: both end."""
    script = "echo > asked.1; sleep 600; echo localhost:1"
    words = ("--min-np", 1, "--host-discovery-script", script)
    process = launcher.start(*words, *program_words(elastic_ranks.count_steps))
    launcher.wait_for(1, "asked")
    launcher.wait_for_process("sleep\x00600")
    process.kill()
    assert launcher.wait_for_none() == []


def test_a_remote_shell_that_ignores_its_end_does_not_stop_the_driver(launcher):
    """The shell for "elsewhere" never answers and ignores SIGTERM; meanwhile a killed rank is replaced as usual."""
    shell = "sh -c 'trap : TERM HUP; exec 1>&- 2>&-; echo > stuck.{host}; while :; do sleep 1; done' {host}"
    words = ("--min-np", 1, "--max-np", 3, "-H", "localhost:2,elsewhere:1", "--network-interfaces", "lo")
    process = launcher.start_python(1, elastic_ranks.count_steps, *words, "--remote-shell", shell)
    launcher.wait_for(1, "stuck.elsewhere")
    launcher.wait_for(1, "in.2.rank0")
    launcher.wait_for(1, "in.2.rank1")
    # The driver takes some seconds to end the shell. The job goes on until then.
    ended = b"host 'elsewhere': the remote shell did not answer"
    told = next((line for line in process.stderr if ended in line), None)
    (launcher.folder / "enough").touch()
    out, err = (data.decode() for data in process.communicate(timeout=200))
    assert process.returncode == 0, err
    assert out.count("is done, some steps") == 2
    assert told is not None, err
    assert launcher.wait_for_none() == []
