"""The gloo backend's results: the conformance kit, its algorithms, factors, and the description of the package."""

import json
import subprocess
import sys
from importlib.metadata import entry_points

import numpy as np
import pytest

from abi_ctypes import ALLREDUCE, SUM

pytestmark = pytest.mark.timeout(900)


def kit(library, report, *words):
    """The kit's verdict on each case."""
    command = [sys.executable, "-m", "hvd_core.conformance", "gloo", "--library", library, "--json", report]
    command += ["--patience", "3"]  # the machine has other work
    done = subprocess.run([*map(str, command), *words], capture_output=True, text=True, timeout=880)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return {case["case"]: case["verdict"] for case in json.loads(report.read_text())["cases"]}


def test_the_kit_with_two_ranks(gloo_library, tmp_path):
    levels = [word for level in ("L0", "L2", "L3", "L4") for word in ("--level", level)]
    verdicts = kit(gloo_library, tmp_path / "report.json", "-np", "2", "--quick", *levels)
    passed = [
        "allreduce",
        "reduce",
        "broadcast",
        "allgather",
        "allgatherv",
        "alltoall",
        "alltoallv",
        "barrier",
    ]
    assert {verdicts[f"L2.{name}"] for name in passed} == {"PASS"}
    assert {verdicts[f"L4.{name}"] for name in ("abort", "deadline", "killed_rank", "recreate")} == {"PASS"}
    # Gloo has no current form of it, and no average of integers: hvd-core makes them of what there is.
    assert {verdicts["L2.reducescatter"], verdicts["L2.average"]} == {"EMULATED"}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["auto", "ring", "bcube"])
def test_the_kit_with_four_ranks(gloo_library, tmp_path, monkeypatch, algorithm):
    monkeypatch.setenv("HOROVOD_BACKEND_GLOO_ALGORITHM", algorithm)
    levels = [] if algorithm == "auto" else ["--level", "L2"]
    assert "FAIL" not in kit(gloo_library, tmp_path / "report.json", "-np", "4", *levels).values()


def sums(comm):
    for dtype in (np.float32, np.int64, np.float16):
        for count in (1, 2, 5, 1023, 70_001):
            each = [(np.arange(count) % 50 + rank).astype(dtype) for rank in range(comm.size)]
            out = np.zeros(count, dtype)
            comm.run(ALLREDUCE, [each[comm.rank]], [out], op=SUM)
            assert np.array_equal(out, sum(each)), (dtype, count)


@pytest.mark.parametrize("algorithm", ["ring", "bcube"])
def test_an_odd_number_of_ranks(gloo_ranks, algorithm):
    gloo_ranks(3, sums, options={"algorithm": algorithm})


def test_rank_0_chooses_the_algorithm(gloo_library, tmp_path):
    """Ranks with different values would wait for each other's messages forever."""
    from ranks import in_processes

    def enter(rank):
        chosen.update(algorithm="bcube" if rank == 0 else "ring")

    chosen = {}
    in_processes(gloo_library, tmp_path, 3, sums, options=chosen, enter=enter)


def test_the_package_says_what_it_is(gloo_library):
    found = list(entry_points(group="hvd_core.backends", name="gloo"))
    if not found:
        pytest.skip("hvd-backend-gloo is not installed: pip install --no-build-isolation -e backends/gloo")
    described = found[0].load()()
    assert described.library == gloo_library and described.devices == ("cpu",) and described.spans_hosts
    assert described.probe().detail == "Gloo over TCP"
    shown = subprocess.run(
        [sys.executable, "-m", "hvd_core._cli", "plugin", "show", "gloo"],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert shown.returncode == 0, shown.stderr
    assert "libgloo 0." in shown.stdout and "HOROVOD_GLOO_IFACE" in shown.stdout
