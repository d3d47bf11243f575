"""Random programs on real processes: one launch runs many, one after another (real_rank.py).

What each program means is worked out here, before the launch. A mistake or a hang is reported with the seed; the
program is run again by itself and, when that fails as well, made small. One thread.
"""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from generator import Style, generate
from ideal import Round, ideal
from minimise import minimise, show
from programs import Program
from protocol import Switches
from world import World

HERE = Path(__file__).parent
STYLE = Style(stalls=False)
# Programs of a second, about as many as a launch runs in one. To prepare one costs 2 to 5 ms; what is left over is lost,
# and after too few another launch follows.
PREPARED_PER_SECOND = 20


class RealJob(NamedTuple):
    seed: int
    program: Program
    ends_early: bool  # results may also be errors, from any moment on
    results: dict[tuple, str]  # (rank, key, n) -> exec | fail | ended
    rounds: dict[tuple, Round]  # of those


class Report(NamedTuple):
    wrong: bool
    programs: int
    text: str


def prepare(seed: int, program: Program) -> RealJob | None:
    """None for a program that would wait for ever, or whose end no rank brings about."""
    enders = [r for r, ops in enumerate(program) if any(op[0] in ("leave", "abort") for op in ops)]
    # The requests that are executed before an end are those that would be executed without one.
    world = World([[op for op in ops if op[0] not in ("leave", "abort")] for ops in program], Switches())
    meaning = ideal(world)
    at_end = [pc == len(code) for pc, code in zip(meaning.pcs, world.code, strict=True)]
    if not (any(at_end[r] for r in enders) if enders else all(at_end) and not meaning.pending):
        return None
    rounds = {(r, x.key, n): x for x in meaning.rounds for r, (n, sig) in x.said.items() if sig is not None}
    results = dict(meaning.results)
    for x in meaning.rounds:
        if x.outcome == "exec" and _needs_who_has_joined(x):
            results.update({(r, x.key, n): "fail" for r, (n, _) in x.said.items()})
    return RealJob(seed, program, bool(enders), results, rounds)


def _needs_who_has_joined(x: Round) -> bool:
    """A broadcast from a rank that has nothing to send any more."""
    sig = next(iter(x.said.values()))[1]
    return isinstance(sig, str) and sig.startswith("broadcast") and int(sig.split(" ")[1]) not in x.said


def launch(
    jobs: list[RealJob],
    ranks: int,
    env: dict,
    seconds: float,
    least: int = 0,
    hang: float = 30,
) -> tuple[int, str]:
    """(exit code, output). Stops after so long, but not before `least` programs are done.

    Code 124: the launcher itself did not come back.
    """
    with tempfile.TemporaryDirectory(prefix="hvd-programs-") as folder:
        path = Path(folder) / "jobs"
        path.write_bytes(pickle.dumps(jobs))
        paths = [HERE, HERE.parents[1] / "model", HERE.parents[1] / "hvd_core/engine", HERE.parents[2]]
        job = subprocess.Popen(
            [sys.executable, "-m", "horovod.runner.launch", "-np", str(ranks), sys.executable]
            + [str(HERE / "real_rank.py"), str(path), folder, str(seconds), str(least)],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")]),
                "HOROVOD_DYNAMIC_PROCESS_SETS": "1",
                "HVD_TEST_HANG_SECONDS": str(hang),
                **env,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            output, _ = job.communicate(timeout=seconds + hang + 60 + 10 * least)
        except subprocess.TimeoutExpired:
            job.terminate()
            output, _ = job.communicate(timeout=20)
            return 124, output
        return job.returncode, output


def run_for(
    seconds: float,
    first_seed: int,
    ranks: int,
    env: dict,
    least: int = 1,
    minimise_seconds: float = 120,
) -> Report:
    """Programs from that seed on, for that long, and at least so many."""
    began, seed, done = time.monotonic(), first_seed, 0
    while (left := seconds - (time.monotonic() - began)) > 0 or done < least:
        jobs: list[RealJob] = []
        while len(jobs) < min(PREPARED_PER_SECOND * max(left, 1), 3000) + least:
            if job := prepare(seed, generate(seed, STYLE, ranks).program):
                jobs.append(job)
            seed += 1
        left = max(1, seconds - (time.monotonic() - began))
        code, output = launch(jobs, ranks, env, left, max(0, least - done))
        finished = re.findall(r"DONE (\d+) programs", output)
        if code != 0 or len(finished) != ranks:
            return Report(True, done, _explain(jobs, ranks, env, code, output, minimise_seconds))
        done += int(finished[0])
        seed = jobs[int(finished[0]) - 1].seed + 1
    took = time.monotonic() - began
    return Report(
        False, done, f"{ranks} ranks, {env}: {done} programs, seeds {first_seed}..{seed - 1}, {took:.0f} s"
    )


def _explain(jobs: list[RealJob], ranks: int, env: dict, code: int, output: str, seconds: float) -> str:
    text = f"{ranks} ranks, {env}, exit code {code}:\n{output[-6000:]}\n"
    at = [int(n) for n in re.findall(r"MISTAKE (?:hang )?in program (\d+)", output)]
    if not at:
        return text
    job = jobs[min(at)]
    text += f"\nseed {job.seed} (program {min(at)} of the launch):\n{show(job.program)}\n"
    until = time.monotonic() + seconds

    def fails(program: Program) -> bool:
        prepared = prepare(job.seed, program)
        if prepared is None or time.monotonic() > until:
            return False
        return launch([prepared] * 20, ranks, env, 10, hang=4)[0] != 0

    if not fails(job.program):
        return text + "By itself it does not fail; the seeds before it matter, or chance does."
    small = minimise(job.program, fails, tries=60)
    _, output = launch([prepare(job.seed, small)] * 20, ranks, env, 10, hang=4)
    return text + f"\nmade small:\n{show(small)}\nwhich prints:\n{output[-3000:]}"
