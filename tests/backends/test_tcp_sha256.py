"""The tcp backend's SHA-256 and HMAC against the published vectors."""

import subprocess
from pathlib import Path

import pytest
from compiled import ROOT, compiled, cxx


@pytest.mark.timeout(120)
def test_published_vectors():
    source = ROOT / "backends" / "tcp"
    words = [cxx(), "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror"]
    vectors = Path(__file__).with_name("sha256_vectors.cc")
    program = compiled("sha256_vectors", words, [vectors, source / "sha256.cc"], [source])
    done = subprocess.run([program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout == "passed\n", done.stderr
