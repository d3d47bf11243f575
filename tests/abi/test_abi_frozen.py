"""A backend of each minor, built when that was frozen, and this engine: it loads, it keeps the contract, it serves a job.

The binaries in frozen/ are never built anew (frozen/build.sh says how they were made).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys

import pytest

from abi_toolchain import HERE, ROOT
from harness.frameworks import horovodrun
from hvd_core import _core

FROZEN = HERE / "frozen" / platform.machine()
LIBRARY = FROZEN / "libhvd_backend_eccl_stub.so"

pytestmark = pytest.mark.skipif(
    not LIBRARY.exists(),
    reason=f"no backend of ABI 1.0 was kept for {platform.machine()}; frozen/build.sh makes one",
)
# Small ones of every kind that the engine relies on; the whole kit takes minutes.
CASES = ["L1.copy", "L1.events", "L1.stream_wait_event", "L2.allreduce", "L2.broadcast", "L2.allgatherv"]
CASES += ["L2.narrowing", "L2.scaling", "L2.groups", "L2.process_sets", "L3.producer_consumer", "L4.abort"]


def test_frozen_binaries_are_those_of_then():
    lines = (HERE / "frozen" / "SHA256SUMS.txt").read_text().splitlines()
    assert len(lines) >= 2
    for line in lines:
        digest, name = line.split()
        found = hashlib.sha256((HERE / "frozen" / name).read_bytes()).hexdigest()
        assert found == digest, f"{name} is the backend of a frozen ABI, and has been replaced"
    assert max(path.stat().st_size for path in FROZEN.iterdir()) < 300 << 10


def test_frozen_backend_loads():
    facts = _core.inspect_backend("eccl_stub", str(LIBRARY))
    assert facts["abi"] == (1, 0)
    assert facts["caps"] == ["STREAM", "GROUP_SAME", "ABORT", "MEM_DEVICE"]


def test_each_released_minor_has_a_kept_backend():
    header = (ROOT / "hvd_core" / "include" / "hvd" / "backend_abi.h").read_text()
    newest = int(re.search(r"#define HVD_ABI_MINOR (\d+)", header)[1])
    kept = {
        _core.inspect_backend("eccl_stub", str(file))["abi"] for file in FROZEN.glob("libhvd_backend_*.so")
    }
    assert kept == {(1, minor) for minor in range(newest + 1)}


def test_frozen_backend_keeps_the_contract(tmp_path):
    out = tmp_path / "kit.json"
    command = [sys.executable, "-m", "hvd_core.conformance", "eccl_stub", "--library", LIBRARY, "-np", "2"]
    command += ["--quick", "--level", "L0", "--json", out, "--patience", "3"]
    for case in CASES:
        command += ["--case", case]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    verdicts = {case["case"]: case["verdict"] for case in json.loads(out.read_text())["cases"]}
    assert set(CASES) <= set(verdicts)
    assert all(verdicts[case] in ("PASS", "EMULATED") for case in CASES), verdicts


def test_frozen_backend_serves_a_job(tmp_path):
    """Two ranks with tensors in device memory: served types, and types that the library refuses (64 bits)."""
    side = tmp_path / "libprogram_side.so"
    include = ROOT / "simulators" / "eccl" / "include"
    compiler = os.environ.get("CC", "cc")
    source = ROOT / "tests/backends/eccl_stub" / "program_side.c"
    simulator = FROZEN / "libeccl_sim.so"
    words = [
        compiler,
        "-shared",
        "-fPIC",
        f"-I{include}",
        source,
        "-o",
        side,
        f"-Wl,-rpath,{FROZEN}",
        simulator,
    ]
    subprocess.run([*map(str, words)], check=True, timeout=120)
    program = [str(ROOT / "tests/backends/eccl_stub" / "eccl_job_ranks.py"), str(side), "gap"]
    env = {
        **os.environ,
        "HOROVOD_BACKEND": "eccl_stub",
        "HOROVOD_BACKEND_PATH_ECCL_STUB": str(LIBRARY),
        "HOROVOD_EMULATION": "0",
    }
    done = subprocess.run([*horovodrun(2), *program], env=env, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("afterwards [2. 2. 2.]") == 2, done.stdout
