"""Random whole-job programs do what a sequential model says they mean (generator.py, tests/model/ideal.py)."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

import hvd_core
import real_jobs
from generator import generate, judge
from minimise import is_valid, minimise
from protocol_sim import ProtocolSim
from sim_jobs import check_seed

SEEDS, PARTS = 1200, 16
QUICK = 2  # parts in `make test`


def check_part(part: int) -> str:
    """The fault of the first program of a part whose results differ from its meaning; empty if all agree."""
    seeds = range(part * SEEDS // PARTS, (part + 1) * SEEDS // PARTS)
    return next(filter(None, (check_seed(ProtocolSim, seed) for seed in seeds)), "")


@pytest.fixture(scope="module")
def parts():
    """Gives what came of a part. They keep all cores busy, from the first test on that asks for one."""
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, multiprocessing.get_context("spawn")) as pool:
        quick = [pool.submit(check_part, part) for part in range(QUICK)]
        yield lambda part: quick[part] if part < QUICK else pool.submit(check_part, part)


@pytest.mark.parametrize(
    "part", [*range(QUICK), *(pytest.param(p, marks=pytest.mark.slow) for p in range(QUICK, 4 * PARTS))]
)
def test_on_control_nodes(parts, part: int) -> None:
    wrong = parts(part).result()
    assert not wrong, wrong


def test_programs_are_what_they_should_be() -> None:
    """They are valid, some stall by their own fault and most do not, and everything occurs."""
    jobs = [generate(seed) for seed in range(300)]
    assert all(is_valid(job.program) for job in jobs)
    assert 100 < sum(job.complete for job in jobs) < 290
    kinds = {op[0] for job in jobs for ops in job.program for op in ops}
    assert kinds == {
        *("submit", "fail", "wait", "poll", "join", "leave", "abort", "signal", "await", "add", "end")
    }
    assert generate(7) == generate(7)


def test_a_failing_program_is_made_small() -> None:
    def stalls(program) -> bool:
        return not judge(0, program).complete

    program = next(
        job.program
        for job in map(generate, range(1000))
        if not job.complete and not {op[0] for ops in job.program for op in ops} & {"leave", "abort"}
    )
    small = minimise(program, stalls)
    assert stalls(small) and is_valid(small)
    assert sum(map(len, small)) <= 4 + 2 * len(small)


# Programs that a job runs at least, on a machine with much other work too.
LEAST = 20
# The number of ranks and their variables.
REAL = {
    "shm-3": (3, {"HOROVOD_BACKEND": "shm"}),
    "tcp-2": (2, {"HOROVOD_BACKEND": "tcp"}),
    "hierarchical-4": (4, {"HOROVOD_SIMULATED_HOSTS": "0,0,1,1"}),
}


def run_on_real_ranks(job: str, seconds: float) -> None:
    ranks, env = REAL[job]
    if "shm" not in job and not any((Path(hvd_core.__file__).parent / "lib").glob("*tcp*.so")):
        pytest.skip("the tcp backend is not built")
    report = real_jobs.run_for(seconds, 1_000_000 * ranks, ranks, env, least=LEAST)
    assert not report.wrong, report.text
    assert report.programs >= LEAST, report.text
    print(report.text)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("job", REAL)
def test_on_real_ranks(job: str) -> None:
    """A second each, or as long as LEAST programs take; soak.py goes on for as long as wanted."""
    run_on_real_ranks(job, 1)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("job", REAL)
def test_on_real_ranks_for_longer(job: str) -> None:
    run_on_real_ranks(job, 18)
