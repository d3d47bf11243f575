"""What the engine composes where a backend lacks something: with backends that lack nearly everything.

native/emulated_test.cc compares every collective, type and reduction, bit for bit, with what the shm backend does
natively; ranks are threads there. tests/backends/poor is a backend of its own, between processes too.
"""

import subprocess

import pytest

import native_program

POOR = native_program.ROOT / "tests" / "backends" / "poor" / "poor.cc"
EMULATED = ["abilities", "emulated", "emulated_move", "emulated_reduce", "emulated_routes"]
SOURCES = [*(f"data/{p}.cc" for p in EMULATED), "observe/log.cc"]


def run(flags=None, seed=1):
    program = native_program.build("emulated_test", SOURCES, flags)
    command = [program, native_program.shm_library(), native_program.backend(POOR, flags), seed]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0 and done.stdout.endswith("all good\n"), (
        done.stdout[-4000:] + done.stderr[-4000:]
    )


@pytest.mark.timeout(300)
def test_composed_collectives_are_the_native_ones_bit_for_bit():
    run()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["address,undefined", "thread"])
def test_composed_under_sanitizer(kind):
    run(["-O1", "-g1", f"-fsanitize={kind}", "-fno-sanitize-recover=all"], seed=2)
