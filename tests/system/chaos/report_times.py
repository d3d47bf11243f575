"""Measures how long the ranks that live on take to report a fault, and prints the table of docs/reliability.md.

    python tests/system/chaos/report_times.py [--samples 20]

Each sample is a job of 3 forked ranks (tests/system/chaos/fault_jobs.py) with the fault at another moment.
"""

import argparse
import random
import re
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fault_jobs import run
from fault_scenarios import OPERATION_SECONDS, Scenario

LIMIT = f"{OPERATION_SECONDS:g} s"
# What happens, then the phase, the fault, the backend and the operation of the scenario.
ROWS = (
    ("a rank is killed (SIGKILL) between operations", "steady", "kill", "shm", "allreduce"),
    ("a rank is killed in the middle of 16 MB, shared memory", "large", "kill", "shm", "allreduce"),
    ("a rank is killed in the middle of 16 MB, TCP", "large", "kill", "tcp", "allreduce"),
    ("a rank is killed during `init()`", "init", "kill", "shm", "allreduce"),
    ("a program ends with exit code 0 during `init()`", "init", "exit 0", "shm", "allreduce"),
    ("a program ends with exit code 3 (`os._exit`)", "steady", "exit 3", "shm", "allreduce"),
    ("a rank calls `shutdown()` while the others go on", "steady", "leave", "shm", "allreduce"),
    ("a rank is killed while process sets change", "sets", "kill", "tcp", "allgather"),
    ("the links of a rank are cut", "steady", "cut", "tcp", "allreduce"),
    ("a backend fails", "steady", "error", "chaos", "allreduce"),
    ("a backend ends the process", "steady", "exit", "chaos", "allreduce"),
    (f"a backend does not return, limit {LIMIT}", "steady", "collective", "hanging", "allreduce"),
    (f"a backend never completes, limit {LIMIT}", "steady", "never", "hanging", "allreduce"),
    (f"a rank is stopped (SIGSTOP), limit {LIMIT}", "steady", "stop", "shm", "allreduce"),
)


def samples(phase, fault, backend, operation, count):
    """(Seconds until each report, all different texts) of so many jobs."""
    chance = random.Random(f"{phase} {fault} {backend}")
    seconds, texts = [], []
    for number in range(count):
        chosen = Scenario(
            seed=number,
            size=3,
            victim=chance.randrange(3),
            operation=operation,
            phase=phase,
            fault=fault,
            backend=backend,
            launcher="forked",
            step=chance.randint(2, 30),
            delay_ms=chance.uniform(0, 60 if phase == "init" else 15),
        )
        for took, text in run(chosen):
            texts.append(text)
            if took is not None:
                seconds.append(took)
    return seconds, texts


def shown(text):
    """A report without what differs from run to run."""
    text = re.sub(r"pid \d+", "pid 17", text.replace("Horovod's engine was aborted: ", ""))
    text = re.sub(r"host [^,)]+", "host a", text)
    return " ".join(text.split()).replace("|", "\\|")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=20)
    options = parser.parse_args()
    print("| what happens | what a user sees, for example | reports | min ms | median ms | max ms |")
    print("|---|---|---|---|---|---|")
    for what, *scenario in ROWS:
        seconds, texts = samples(*scenario, options.samples)
        times = ""
        if seconds:
            ms = [1e3 * one for one in seconds]
            times = f"{min(ms):.0f} | {statistics.median(ms):.0f} | {max(ms):.0f}"
        example = max(set(map(shown, texts)), key=list(map(shown, texts)).count)
        print(f"| {what} | `{example}` | {len(texts)} | {times} |", flush=True)


if __name__ == "__main__":
    main()
