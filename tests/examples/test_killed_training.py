"""`kill -9` in the middle of training, DataLoader workers alive: the job ends at once, says who died, leaves nothing.

The job is the example as a user starts it; ranks are found and killed by their process ids.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from launchers import left_in_shared_memory

from harness.installed import need

need("torch", reason="the example trains with torch")
need("sklearn", reason="the example's data set comes with scikit-learn")
need("matplotlib", reason="the example draws with matplotlib")

EXAMPLE = str(Path(__file__).resolve().parents[2] / "examples" / "pytorch_digits.py")

pytestmark = pytest.mark.timeout(400)


def family(launcher):
    """All living processes below the launcher."""
    try:
        return psutil.Process(launcher.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def rank_of(process):
    """The rank that a process of the job is, or None for helpers and for the workers that a rank forked."""

    def claimed(candidate):
        if not any(EXAMPLE in argument for argument in candidate.cmdline()):
            return None
        return candidate.environ().get("HOROVOD_RANK")

    try:
        rank, parent = claimed(process), process.parent()
        return int(rank) if rank is not None and (parent is None or claimed(parent) != rank) else None
    except psutil.Error:
        return None


@pytest.fixture
def job(tmp_path):
    """The example on two ranks with one DataLoader worker each, well into its training."""
    command = [sys.executable, "-m", "horovod.runner.launch", "-np", "2", sys.executable, EXAMPLE]
    options = ["--epochs", "100000", "--workers", "1", "--output", str(tmp_path / "out")]
    shared_before = set(os.listdir("/dev/shm"))
    log = (tmp_path / "log").open("w+")
    launcher = subprocess.Popen([*command, *options], stdout=log, stderr=subprocess.STDOUT, cwd=tmp_path)
    launcher.log, launcher.shared_before = tmp_path / "log", shared_before
    try:
        until = time.monotonic() + 240
        while not re.search(r" [1-9]\d*/100000 ", launcher.log.read_text()):
            assert launcher.poll() is None, f"the job ended by itself:\n{launcher.log.read_text()}"
            assert time.monotonic() < until, f"no epoch was finished in 240 s:\n{launcher.log.read_text()}"
            time.sleep(0.2)
        yield launcher
    finally:
        remaining = family(launcher)
        launcher.kill()
        launcher.wait()
        for process in remaining:
            if process.is_running():
                process.kill()
        log.close()


def kill_ranks(job, ranks):
    """SIGKILL the given ranks and wait for the launcher. Returns (seconds it took, what the job had printed).

    On a machine without other work it takes less than 5 s (tests/runner); tests leave room for a busy one.
    """
    members = family(job)
    by_rank = {rank_of(process): process for process in members}
    assert {0, 1} <= by_rank.keys(), f"ranks not found among {members}"
    workers = [process for process in members if process.ppid() in {by_rank[0].pid, by_rank[1].pid}]
    assert workers, "no DataLoader worker is alive: this would not be the case that was to be tried"
    started = time.monotonic()
    for rank in ranks:
        os.kill(by_rank[rank].pid, signal.SIGKILL)
    job.wait(timeout=100)
    seconds = time.monotonic() - started
    _, alive = psutil.wait_procs(members, timeout=30)
    assert not alive, f"left behind: {alive}\n{job.log.read_text()}"
    return seconds, job.log.read_text()


def test_kill_9_of_one_rank_ends_the_job_and_names_the_rank(job):
    seconds, output = kill_ranks(job, [1])
    assert seconds < 25, f"took {seconds:.1f} s\n{output}"
    assert job.returncode not in (0, None)
    failure = re.search(r"JobEndedError.*", output)
    assert failure, output
    assert re.search(r"\brank 1\b", failure[0]), failure[0]
    assert left_in_shared_memory(job.shared_before) == []


def test_kill_9_of_all_ranks_leaves_nothing(job):
    seconds, output = kill_ranks(job, [0, 1])
    assert seconds < 25, f"took {seconds:.1f} s\n{output}"
    assert job.returncode not in (0, None)
    assert left_in_shared_memory(job.shared_before) == []
