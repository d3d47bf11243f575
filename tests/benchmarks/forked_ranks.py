"""Runs a benchmark with the words that stand for the interpreter of its ranks.

python forked_ranks.py WORD ... -- SCRIPT ARGUMENT ...
"""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    end = sys.argv.index("--")
    words = sys.argv[1:end]
    del sys.argv[: end + 1]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    from harness import fleet  # that of the benchmarks

    fleet.INTERPRETER[:] = words
    runpy.run_path(sys.argv[0], run_name="__main__")
