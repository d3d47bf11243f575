"""The composition of two levels of transports: every collective over layouts of hosts, values and bits.

The ranks are threads of a C++ program and the hosts are made up, but all communicators are real ones of the shm backend
(native/hierarchical_test.cc).
"""

import subprocess

import pytest

import native_program

# Host by rank. The last three need five ranks and more: members beyond the lanes, and lanes that serve several.
LAYOUTS = {
    "2x2": "0 0 1 1",
    "2+1": "0 0 1",
    "1+3": "0 1 1 1",
    "three_hosts": "0 1 2",
    "round_robin": "0 1 0 1",
    "round_robin_uneven": "0 1 0",
    "one_host": "0 0 0",
    "one_rank": "0",
    "2+3": "0 0 1 1 1",
    "round_robin_3+2": "0 1 0 1 0",
    "mixed_2+2+3": "2 0 0 1 2 1 2",
}
PARTS = [
    "hierarchical",
    "hierarchical_alltoall",
    "hierarchical_levels",
    "hierarchical_move",
    "hierarchical_reduce",
]
PARTS += ["hierarchical_scatter", "direct", "host_math", "layout", "program"]


def run(layout, flags=("-O2", "-g1")):
    sources = [*(f"data/{p}.cc" for p in PARTS), "control/signature.cc"]
    program = native_program.build("hierarchical_test", sources, list(flags))
    command = [program, native_program.shm_library(), *LAYOUTS[layout].split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and done.stdout.startswith("passed"), (
        done.stdout[-2000:] + done.stderr[-2000:]
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_collective_over(layout):
    run(layout)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("layout", ["2x2", "2+1", "round_robin_3+2"])
def test_under_address_and_undefined_sanitizer(layout):
    run(layout, ["-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"])
