#!/usr/bin/env python3
"""Instructions of the engine's most frequent calls, counted by valgrind on the calling thread.

    python benchmarks/instructions.py [--check] [--json result.json]

A job of one rank makes named allreduces of 4 bytes, or steps of 64 gradients of 4 bytes whose batch is known. With
--check the exit code is 1 if a count is above its limit in instruction_limits.toml: time on a busy machine says little,
instructions do not depend on it. After a change that is worth its price, raise the limit. Needs valgrind.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness.build import BENCHMARKS
from harness.valgrind import per_call
from hvd_core.bench import _report

GRADIENTS = 64
_HEAD = """
import sys
import numpy as np
import hvd_core as hvd
hvd.init()
"""
# By the name in the table: the program, calls before and while it is counted, and calls of the user in each.
CASES = {
    "named allreduce of 4 bytes": (
        _HEAD
        + """
x = np.ones(1, np.float32)
for _ in range(int(sys.argv[1])):
    hvd.allreduce_(x, op=hvd.Sum, name="x")
hvd.shutdown()
""",
        500,
        1500,
        1,
    ),
    "gradient of 4 bytes in a known batch": (
        _HEAD
        + f"""
x = [np.ones(1, np.float32) for _ in range({GRADIENTS})]
names = [f"layer.{{i}}.weight" for i in range({GRADIENTS})]
for _ in range(int(sys.argv[1])):
    handles = [hvd.allreduce_async_(t, op=hvd.Sum, name=n) for t, n in zip(x, names)]
    for handle in handles:
        hvd.synchronize(handle)
hvd.shutdown()
""",
        30,
        60,
        GRADIENTS,
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="fail if a count is above its limit")
    parser.add_argument("--json", metavar="FILE", help="write the counts to FILE")
    options = parser.parse_args()
    limits = tomllib.loads((BENCHMARKS / "instruction_limits.toml").read_text())
    counts = {
        name: per_call(program, few, more, BENCHMARKS.parent) / calls
        for name, (program, few, more, calls) in CASES.items()
    }
    rows = [[name, f"{n:,.0f}", f"{limits[name]:,}"] for name, n in counts.items()]
    print(_report.table(["call", "instructions", "limit"], rows))
    if options.json:
        Path(options.json).write_text(json.dumps(counts, indent=1) + "\n")
    above = [name for name, n in counts.items() if n > limits[name]]
    return 1 if options.check and above else 0


if __name__ == "__main__":
    sys.exit(main())
