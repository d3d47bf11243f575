"""The distribution hvd-backend-nccl: one wheel for all Pythons, without CUDA and NCCL in it; extras bring NCCL."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import hvd_core

FOLDER = Path(hvd_core.__file__).resolve().parents[1] / "backends" / "nccl"


@pytest.mark.slow
@pytest.mark.timeout(900)  # everything is compiled from nothing, the kernels included where there is nvcc
def test_the_wheel(tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-q"]
    command += ["-C", f"build-dir={tmp_path / 'build'}", "-w", str(tmp_path), str(FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith("hvd_backend_nccl-") and "-py3-none-linux" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(n for n in names if n.endswith("METADATA"))).decode()
    assert "hvd_backend_nccl/lib/libhvd_backend_nccl.so" in names
    assert not [n for n in names if "libnccl" in n or "libcuda" in n or "tests" in n]
    for line in (
        "Requires-Dist: hvd-core>=0.29",
        'Requires-Dist: nvidia-nccl-cu12>=2.19; extra == "cu12"',
        'Requires-Dist: nvidia-nccl-cu13>=2.19; extra == "cu13"',
    ):
        assert line in metadata, metadata
