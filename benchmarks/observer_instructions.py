#!/usr/bin/env python3
"""What the observer adds to an allreduce, in instructions, counted by valgrind.

    python benchmarks/observer_instructions.py [--calls 1500] [--json result.json]

Counts the instructions of one hvd_core.allreduce_ of 4 bytes in a job of one rank: with an engine that was built without
the observer, with the observer off (HOROVOD_FLIGHT_RECORDER=0), with the flight recorder, and with a timeline. A count
is the difference between a program that makes `calls` more calls and one that does not, over the calls, on the calling
thread. The engine without the observer is built for this from the checkout, into a folder of its own (some
minutes). Needs valgrind.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness.build import BENCHMARKS
from harness.valgrind import per_call
from hvd_core.bench import _report

GOAL = 0.005
ROOT = BENCHMARKS.parent  # this benchmark builds the engine: it needs a checkout
_FEW = 500
_PROGRAM = """
import sys
import numpy as np
import hvd_core as hvd
hvd.init()
x = np.ones(1, np.float32)
for _ in range(int(sys.argv[1])):
    hvd.allreduce_(x, op=hvd.Sum, name="x")
hvd.shutdown()
"""


def without_observer() -> Path:
    """A folder with a copy of the package whose engine was built without the observer."""
    folder = ROOT / "build" / "without-observer"
    package = folder / "hvd_core"
    left_out = shutil.ignore_patterns("engine", "__pycache__", "_core*.so")
    shutil.copytree(ROOT / "hvd_core", package, dirs_exist_ok=True, ignore=left_out)
    build = folder / "cmake"
    flags = [
        f"-DPython_EXECUTABLE={sys.executable}",
        "-DCMAKE_CXX_FLAGS=-DHVD_WITHOUT_OBSERVER",
        "-DHVD_IN_PLACE=OFF",
        "-DCMAKE_BUILD_TYPE=Release",
    ]
    subprocess.run(
        ["cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja", *flags],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    subprocess.run(
        ["cmake", "--build", str(build), "--target", "_core"], check=True, stdout=subprocess.DEVNULL
    )
    name = f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    shutil.copy2(build / name, package / name)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=1500, help="default %(default)s")
    parser.add_argument("--json", metavar="FILE", help="write the counts to FILE")
    options = parser.parse_args()
    off = {"HOROVOD_FLIGHT_RECORDER": "0"}
    ways = {
        "without the observer": (without_observer(), off),
        "off": (ROOT, off),
        "flight recorder": (ROOT, {}),
        "flight recorder and timeline": (ROOT, {"HOROVOD_TIMELINE": "{folder}/t.json"}),
    }
    counts = {}
    for way, (path, env) in ways.items():
        counts[way] = per_call(_PROGRAM, _FEW, options.calls, path, env)
    base = counts["without the observer"]
    rows = [[way, f"{n:.0f}", f"{n / base - 1:+.2%}"] for way, n in counts.items()]
    print(_report.table(["observer", "instructions of an allreduce", "more"], rows))
    print(f"off: {'at most' if counts['off'] <= base * (1 + GOAL) else 'MORE than'} {GOAL:.1%} more")
    if options.json:
        Path(options.json).write_text(json.dumps(counts, indent=1) + "\n")


if __name__ == "__main__":
    main()
