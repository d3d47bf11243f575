"""Kernels and copies of the backend nccl under NVIDIA's memory checker, as the kit's device cases drive them."""

import gpu_machine

gpu_machine.require()

import os
import re
import shutil
import subprocess
import sys

import pytest

CHECKER = shutil.which("compute-sanitizer") or next(
    (p for p in ("/usr/local/cuda/bin/compute-sanitizer",) if os.path.exists(p)), None
)
# What the checker reports of a kernel; errors that calls return are the kit's affair.
BAD = re.compile(r"^========= (Invalid|Misaligned|Out-of-range|Uninitialized|Race|Error: ).*", re.M)
LIMITED = re.compile(r"device not supported|is not supported on this|debugger interface", re.I)


@pytest.mark.skipif(CHECKER is None, reason="no compute-sanitizer on the PATH or in /usr/local/cuda")
@pytest.mark.timeout(560)
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_device_cases_under_the_checker(tmp_path, tool):
    words = [CHECKER, "--tool", tool, "--target-processes", "all", "--log-file", str(tmp_path / "checked.%p")]
    if tool == "memcheck":
        words += ["--report-api-errors", "no"]
    kit = [sys.executable, "-m", "hvd_core.conformance", "nccl", "-np", "1", "--quick", "--patience", "20"]
    for case in ("L1.batched_copy", "L1.convert", "L1.reduce_local", "L1.copy"):
        kit += ["--case", case]
    done = subprocess.run([*words, *kit], capture_output=True, text=True, timeout=540)
    logs = "\n".join(path.read_text(errors="replace") for path in sorted(tmp_path.glob("checked.*")))
    if LIMITED.search(logs + done.stdout + done.stderr):
        pytest.skip(f"the checker does not work on this machine: {(logs + done.stderr).strip()[-300:]}")
    assert "COMPUTE-SANITIZER" in logs, f"it has checked nothing: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    found = BAD.findall(logs)
    assert not found, logs[:6000]
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
