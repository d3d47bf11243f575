"""The tcp backend's SHA-256 and HMAC against the published vectors."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(120)
def test_published_vectors(tmp_path):
    program = tmp_path / "sha256_vectors"
    source = ROOT / "backends" / "tcp"
    vectors = Path(__file__).with_name("sha256_vectors.cc")
    compile_ = ["c++", "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{source}"]
    subprocess.run([*compile_, vectors, source / "sha256.cc", "-o", program], check=True, timeout=100)
    done = subprocess.run([program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout == "passed\n", done.stderr
