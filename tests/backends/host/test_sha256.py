"""wire_security/sha256.h against the published vectors of SHA-256 and HMAC."""

import subprocess
from pathlib import Path

import pytest

from compiled import ROOT, compiled, cxx


@pytest.mark.timeout(120)
def test_published_vectors():
    words = [cxx(), "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror"]
    vectors = Path(__file__).with_name("sha256_vectors.cc")
    program = compiled("sha256_vectors", words, [vectors], [ROOT / "backends"])
    done = subprocess.run([program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout == "passed\n", done.stderr
