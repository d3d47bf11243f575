"""`kill -9` in the middle of training, DataLoader workers alive: the job ends at once, says who died, leaves nothing.

Ranks are found and killed by their process ids. Where one is left, it ends as an interpreter does, and horovodrun ends
the workers of the one that is gone.
"""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from harness.frameworks import horovodrun
from harness.installed import need
from launchers import left_in_shared_memory, send_each

need("torch", reason="the example trains with torch")
need("sklearn", reason="the example's data set comes with scikit-learn")
need("matplotlib", reason="the example draws with matplotlib")

EXAMPLE = str(Path(__file__).resolve().parents[3] / "examples" / "pytorch_digits.py")

pytestmark = pytest.mark.timeout(400)


def family(pid):
    """All living processes below one."""
    try:
        return psutil.Process(pid).children(recursive=True)
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


def ranks_below(job):
    """The ranks below the launcher."""
    return {rank_of(process): process for process in family(job.pid)}


@pytest.fixture
def job(tmp_path):
    """The example on two ranks with one DataLoader worker each, well into its training."""
    command = [*horovodrun(2), EXAMPLE]
    options = ["--epochs", "100000", "--workers", "1", "--output", str(tmp_path / "out")]
    shared_before = set(os.listdir("/dev/shm"))
    log = (tmp_path / "log").open("w+")
    job = subprocess.Popen([*command, *options], stdout=log, stderr=subprocess.STDOUT, cwd=tmp_path)
    job.log, job.shared_before = tmp_path / "log", shared_before
    try:
        until = time.monotonic() + 240
        # It is written at the end of an epoch; the progress bar waits another second.
        while not (tmp_path / "out" / "checkpoint.pt").exists():
            assert job.poll() is None, f"the job ended by itself:\n{job.log.read_text()}"
            assert time.monotonic() < until, f"no epoch was finished in 240 s:\n{job.log.read_text()}"
            time.sleep(0.05)
        yield job
    finally:
        remaining = family(job.pid)
        job.kill()
        job.wait()
        for process in remaining:
            if process.is_running():
                process.kill()
        log.close()


def kill_ranks(job, ranks):
    """SIGKILL the given ranks and wait for the launcher. Returns what the job had printed.

    On a machine without other work it takes less than 5 s (tests/horovod/runner).
    """
    by_rank = ranks_below(job)
    assert {0, 1} <= by_rank.keys(), f"ranks not found among {family(job.pid)}"
    workers = [worker for rank in range(2) for worker in family(by_rank[rank].pid)]
    assert workers, "no DataLoader worker is alive: this would not be the case that was to be tried"
    members = [*family(job.pid), by_rank[0], by_rank[1], *workers]
    send_each(signal.SIGKILL, [by_rank[rank].pid for rank in ranks])
    job.wait(timeout=100)
    _, alive = psutil.wait_procs(members, timeout=30)
    assert not alive, f"left behind: {alive}\n{job.log.read_text()}"
    return job.log.read_text()


def test_kill_9_of_one_rank_ends_the_job_and_names_the_rank(job):
    output = kill_ranks(job, [1])
    assert job.returncode not in (0, None)
    failure = re.search(r"JobEndedError.*", output)
    assert failure, output
    assert re.search(r"\brank 1\b", failure[0]), failure[0]
    assert left_in_shared_memory(job.shared_before) == []


@pytest.mark.slow
def test_kill_9_of_all_ranks_leaves_nothing(job):
    kill_ranks(job, [0, 1])
    assert job.returncode not in (0, None)
    assert left_in_shared_memory(job.shared_before) == []
