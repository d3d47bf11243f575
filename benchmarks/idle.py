#!/usr/bin/env python3
"""The cost of an idle engine: CPU time of each rank in the seconds after its last allreduce.

    python benchmarks/idle.py [--seconds 10] [--only torch] [--limit-ms 10]

Starts two pinned ranks per alternative, lets them allreduce some small and large buffers, leaves them alone
and reads each process's CPU clock (all its threads, nanoseconds) from outside: at the end of the last
operation and --seconds later. Exits with 1 when one of our own processes used more than --limit-ms, the
project's goal. A rank waits in a blocking read meanwhile, so what it uses is the library's own doing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness.alternatives import spec_of
from harness.fleet import Fleet
from hvd_core.bench._conductor import Unavailable, cpu_ns

OURS = ("torch", "numpy")


def wakeups(pid: int) -> int:
    """How often the threads of a process have gone to sleep, which is how often they woke."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                total += int(line.split()[1])
    return total


def measure(fleet: Fleet, seconds: float) -> dict:
    """{alternative: [{"pid", "cpu_ms", "wakeups"} per rank]}; all alternatives idle at the same time."""
    for name in list(fleet.teams):
        try:
            for nbytes, iters in ((4, 200), (1 << 20, 20), (16 << 20, 3), (4, 200)):
                fleet.teams[name].ask(
                    {"do": "measure", "bytes": nbytes, "iters": iters, "verify": True, "options": {}}
                )
        except Unavailable as error:
            fleet.drop(name, str(error))
    pids = {name: [team.pids[rank] for rank in range(team.size)] for name, team in fleet.teams.items()}
    before = {pid: (cpu_ns(pid), wakeups(pid)) for ranks in pids.values() for pid in ranks}
    time.sleep(seconds)
    return {
        name: [
            {"cpu_ms": (cpu_ns(pid) - before[pid][0]) / 1e6, "wakeups": wakeups(pid) - before[pid][1]}
            for pid in ranks
        ]
        for name, ranks in pids.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-np", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--seconds", type=float, default=10, help="how long to stay idle (default 10)")
    parser.add_argument("--only", default="torch,numpy,gloo", help="alternatives (default torch,numpy,gloo)")
    parser.add_argument(
        "--limit-ms", type=float, default=10, help="most CPU time of a rank of ours (default 10)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    options = parser.parse_args()
    with Fleet(options.np) as fleet:
        for name in options.only.split(","):
            fleet.start(name, lambda name=name: spec_of(name, options.np))
        found = measure(fleet, options.seconds)
        failed = dict(fleet.failed)
    over = []
    for name, ranks in found.items():
        for rank, used in enumerate(ranks):
            print(
                f"{name} rank {rank}: {used['cpu_ms']:.2f} ms CPU, "
                f"{used['wakeups']} wake-ups in {options.seconds:g} s"
            )
            if name in OURS and used["cpu_ms"] > options.limit_ms:
                over.append(f"{name} rank {rank}")
    if options.json:
        result = {"seconds": options.seconds, "idle": found, "not_measured": failed}
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    if over:
        raise SystemExit(f"more than {options.limit_ms:g} ms: {', '.join(over)}")


if __name__ == "__main__":
    main()
