"""The composition of two levels of transports: every collective over layouts of hosts, values and bits.

The ranks are threads of a C++ program and the hosts are made up, but the communicators are real ones
(native/hierarchical_test.cc).
"""

import os
import subprocess

import pytest

import native_program
from hvd_core.backends import installed

# Host by rank. The last three need five ranks and more: members beyond the lanes, and lanes that serve several.
LAYOUTS = {
    "2x2": "0 0 1 1",
    "2+1": "0 0 1",
    "1+3": "0 1 1 1",
    "round_robin": "0 1 0 1",
    "round_robin_uneven": "0 1 0",
    "2+3": "0 0 1 1 1",
    "round_robin_3+2": "0 1 0 1 0",
    "mixed_2+2+3": "2 0 0 1 2 1 2",
}
QUICK = ("2x2", "2+1", "round_robin", "round_robin_3+2")
MINIMAL = native_program.ROOT / "tests/backends/host" / "minimal" / "minimal.cc"


def library(name):
    if name == "minimal":
        return native_program.backend(MINIMAL)
    return next(b for b in installed() if b.name == name).path()


def run(layout, within="shm", between="shm", extent="all", flags=None):
    program = native_program.build("hierarchical_test", flags)
    libraries = [library(name) for name in ("shm", within, between)]
    command = [program, *libraries, extent, *LAYOUTS[layout].split()]
    env = {**os.environ, **native_program.PATIENT}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=env)
    assert done.returncode == 0 and done.stdout.startswith("passed"), (
        done.stdout[-2000:] + done.stderr[-2000:]
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "layout",
    # The others differ from these in how many members there are. The largest is below, with fewer cases.
    [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in LAYOUTS],
)
def test_every_collective_over(layout):
    run(layout)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("layout", ["2x2", "2+1", "round_robin", "mixed_2+2+3"])
def test_shared_memory_within_and_sockets_between(layout):
    run(layout, between="tcp", extent="few")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("layout", ["2x2", "round_robin_uneven", "2+3"])
@pytest.mark.parametrize(
    "levels", [("minimal", "shm"), ("shm", "minimal"), ("minimal", "minimal")], ids="_and_".join
)
def test_levels_that_lack_nearly_everything(layout, levels):
    run(layout, *levels, extent="few")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("layout", ["2x2", "2+1", "round_robin_3+2"])
def test_under_address_and_undefined_sanitizer(layout):
    run(layout, flags=["-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"])
