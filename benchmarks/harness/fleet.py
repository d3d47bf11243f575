"""The allreduces of one size that benchmarks/allreduce.py compares: calibrated, then measured in turns.

The conductor that starts the ranks is hvd_core/bench/_conductor.py. Used by the benchmark scripts from one thread.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

from hvd_core.bench import _conductor
from hvd_core.bench._conductor import BARRIER_BYTES, Unavailable

from . import build

WORKERS = build.BENCHMARKS / "workers"


def worker_spec(
    name: str,
    title: str,
    worker: list[str],
    prefix: list[str] | None = None,
    python: str | None = None,
    env: dict[str, str] | None = None,
    shared_bytes: int = BARRIER_BYTES,
    variants: list[dict] | None = None,
) -> _conductor.Spec:
    """How to start one alternative: `worker` is a script in workers/ with its arguments, `python` another interpreter
    than this one. Raises Unavailable."""
    path = os.pathsep.join(filter(None, [str(build.BENCHMARKS), os.environ.get("PYTHONPATH")]))
    env = {
        "PYTHONPATH": path,
        "HVD_BENCH_BARRIER": str(build.native("memory")),
        "HVD_BENCH_SERVING": str(build.PACKAGE / "bench" / "_serving.py"),
        **(env or {}),
    }
    command = [python or sys.executable, str(WORKERS / worker[0]), *worker[1:]]
    return _conductor.Spec(name, title, command, prefix, env, shared_bytes, variants or [{}])


class Fleet(_conductor.Fleet):
    """All alternatives of one run."""

    def __init__(self, size: int, patience_s: float = 0) -> None:
        super().__init__(size, patience_s)
        self.chosen: dict[tuple[str, int], dict] = {}  # variant by (alternative, bytes)
        self.iters: dict[tuple[str, int], int] = {}

    def calibrate(self, name: str, nbytes: int, budget: float) -> None:
        """Verify once, choose the variant, and set how many runs fit in `budget` seconds."""
        team = self.teams[name]
        try:
            best = None
            variants = [v for v in team.spec.variants if fits(v, nbytes)]
            for verify in (True, False, False):
                for variant in variants:
                    command = {
                        "do": "measure",
                        "bytes": nbytes,
                        "iters": 5,
                        "verify": verify,
                        "options": variant,
                    }
                    command["iters"] = 2 if nbytes >= 1 << 26 else 5
                    begin = time.monotonic()
                    took = statistics.median(team.seconds(command))
                    wall = time.monotonic() - begin
                    if not verify and (best is None or took < best[0]):
                        best = took, variant
                if wall > budget * 2 and best:
                    break
            self.chosen[name, nbytes] = best[1]
            # Wall time per run includes rewriting the buffer; short runs are dominated by the command itself.
            per_run = best[0] * 2 + nbytes / 5e9 + 2e-6
            fewest = 3 if nbytes >= 1 << 26 else 5
            self.iters[name, nbytes] = max(fewest, min(1000, int(budget / per_run)))
        except Unavailable as error:
            self.drop(name, str(error))

    def measure(self, name: str, nbytes: int) -> float | None:
        """Median seconds of one turn at this size, None when the alternative has failed."""
        command = {
            "do": "measure",
            "bytes": nbytes,
            "iters": self.iters[name, nbytes],
            "verify": False,
            "options": self.chosen[name, nbytes],
        }
        try:
            return self.turn(name, command)
        except Unavailable as error:
            self.drop(name, str(error))
            return None


def fits(variant: dict, nbytes: int) -> bool:
    """Chunks larger than the buffer are all the same; the one-hop scheme (0) takes up to 32 KiB."""
    chunk = variant.get("chunk")
    if chunk is None:
        return True
    return nbytes <= 32768 if chunk == 0 else chunk < 2 * nbytes and nbytes > 4096
