"""Runs scenarios until the time is over, and prints how long the reports took.

python tests/chaos/soak.py --seconds 600 [--first SEED]
"""

import argparse
import collections
import statistics
import time

from running import run, scenario


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    end, seed, bad = time.monotonic() + options.seconds, options.first, 0
    took = collections.defaultdict(list)
    while time.monotonic() < end:
        chosen = scenario(seed)
        try:
            took[chosen.kind] += list(run(chosen))
        except AssertionError as error:
            bad += 1
            print(f"BAD {error}", flush=True)
        seed += 1
    for kind, all_seconds in sorted(took.items()):
        if all_seconds:
            ms = sorted(1e3 * seconds for seconds in all_seconds)
            print(
                f"| {kind[0]} | {kind[1]} | {len(ms)} | {ms[0]:.0f} | {statistics.median(ms):.0f} | {ms[-1]:.0f} |"
            )
    print(f"{seed - options.first} scenarios, {bad} bad")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
