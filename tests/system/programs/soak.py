"""Runs random programs for as long as wanted, on control nodes in one process or on real ranks.

    python tests/system/programs/soak.py sim --seconds 3600 --seed 1000000
    python tests/system/programs/soak.py real --seconds 3600 --ranks 3 --backend tcp

Stops at the first program that does not do what it means, prints it made small, and exits with 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description="Random programs, until the time is over or one fails.")
    parser.add_argument("where", choices=["sim", "real"])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--schedules", type=int, default=4, help="sim: schedules per program")
    parser.add_argument("--ranks", type=int, default=3, help="real: how many processes")
    parser.add_argument("--backend", default="", help="real: HOROVOD_BACKEND")
    parser.add_argument("--hosts", default="", help="real: HOROVOD_SIMULATED_HOSTS, as 0,0,1")
    args = parser.parse_args()
    tests = Path(__file__).parents[2]
    sys.path[:0] = [str(tests), str(tests / "model")]
    if args.where == "sim":
        return sim(args)
    import real_jobs

    env = {"HOROVOD_BACKEND": args.backend, "HOROVOD_SIMULATED_HOSTS": args.hosts}
    done = real_jobs.run_for(args.seconds, args.seed, args.ranks, {k: v for k, v in env.items() if v})
    print(done.text, flush=True)
    return 1 if done.wrong else 0


def sim(args: argparse.Namespace) -> int:
    from protocol_sim import ProtocolSim
    from sim_jobs import check_seed

    began, seed = time.monotonic(), args.seed
    while time.monotonic() - began < args.seconds:
        if wrong := check_seed(ProtocolSim, seed, args.schedules):
            print(wrong)
            return 1
        seed += 1
    print(f"seeds {args.seed}..{seed - 1}, {args.schedules} schedules each: nothing wrong", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
