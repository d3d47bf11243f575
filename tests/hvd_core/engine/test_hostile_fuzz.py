"""A rank that follows the protocol and says wrong things, for seconds of what `make sanitize` runs for a minute.

By hand, 1 million messages: build/sanitize-address/hostile_fuzz --messages 1000000
"""

import os
import subprocess
from pathlib import Path

import pytest

import hostile_fuzz
import hvd_core

LIBRARIES = Path(hvd_core.__file__).parent / "lib"
# An allocation that no machine can have is an error that the engine reports.
OPTIONS = "allocator_may_return_null=1 detect_leaks=0"


@pytest.mark.parametrize("seed", [1, 1_000_000])
def test_a_wrong_rank_harms_no_other_and_is_named(seed):
    program = hostile_fuzz.build()
    if program is None:
        pytest.skip("the engine's library is older than its sources: build the project first")
    done = subprocess.run(
        [program, "--seconds", "4", "--seed", str(seed), "--backends", LIBRARIES],
        env={**os.environ, "ASAN_OPTIONS": OPTIONS},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0 and "passed: " in done.stdout, done.stdout + done.stderr[-8000:]
