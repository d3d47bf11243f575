"""Runs scenarios with a fault, until the time is over or a number of them have run.

    python tests/system/chaos/soak_faults.py --seconds 600 [--first SEED]
    python tests/system/chaos/soak_faults.py --count 320 --jobs 4
    python tests/system/chaos/soak_faults.py --count 320 --coverage      only prints what they would cover

Prints each scenario that did not end as it must, and how long it took from the fault to the exception.
"""

import argparse
import collections
import itertools
import multiprocessing
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fault_jobs import run, scenario, why_not
from fault_scenarios import coverage


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--count", type=int, default=0, help="how many scenarios; 0: until the time is over")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--coverage", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="how many scenarios side by side")
    options = parser.parse_args()
    seeds = itertools.count(options.first)
    if options.count:
        seeds = range(options.first, options.first + options.count)
    elif options.seconds == float("inf"):
        parser.error("--seconds or --count is needed")
    if options.coverage:
        print_coverage([scenario(seed) for seed in seeds])
        return 0
    return soak(seeds, time.monotonic() + options.seconds, options.jobs)


def attempt(seed, end):
    """The scenario, the seconds of its reports, its error, and why it was not run."""
    chosen = scenario(seed)
    if reason := "the time was over" if time.monotonic() >= end else why_not(chosen):
        return chosen, [], "", reason
    try:
        return chosen, [seconds for seconds, _ in run(chosen)], "", ""
    except AssertionError as error:
        return chosen, [], str(error), ""


def outcomes(seeds, end, jobs):
    seeds = iter(seeds)
    while time.monotonic() < end and (some := list(itertools.islice(seeds, 10 * jobs))):
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
            yield from pool.map(attempt, some, itertools.repeat(end))


def soak(seeds, end, jobs):
    took, skipped = collections.defaultdict(list), collections.Counter()
    count = bad = 0
    for chosen, seconds, error, reason in outcomes(seeds, end, jobs):
        if reason:
            skipped[reason] += 1
            continue
        count += 1
        took[chosen.kind] += seconds
        if error:
            bad += 1
            print(f"BAD {error}", flush=True)
        if count % 20 == 0:
            print(f"{count} scenarios, {bad} bad", file=sys.stderr, flush=True)
    print("| phase | fault | reports | min ms | median ms | max ms |\n|---|---|---|---|---|---|")
    for (phase, fault), all_seconds in sorted(took.items()):
        ms = sorted(1e3 * seconds for seconds in all_seconds if seconds is not None)
        if ms:
            middle = statistics.median(ms)
            print(f"| {phase} | {fault} | {len(ms)} | {ms[0]:.0f} | {middle:.0f} | {ms[-1]:.0f} |")
    for reason, times in skipped.items():
        print(f"{times} not run: {reason}")
    print(f"{count} scenarios, {bad} bad")
    return 1 if bad else 0


def print_coverage(scenarios):
    for rows, columns in (
        ("fault", "phase"), ("fault", "operation"), ("fault", "backend"), ("fault", "launcher"), ("launcher", "backend"),
    ):  # fmt: skip
        print(coverage(scenarios, rows, columns), end="\n\n")


if __name__ == "__main__":
    raise SystemExit(main())
