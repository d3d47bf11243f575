"""wire_security/encryption.h, which finds libcrypto at run time: records that were sent arrive, and no others."""

import os
import subprocess
from pathlib import Path

import pytest

from compiled import ROOT, compiled, cxx

pytestmark = pytest.mark.timeout(120)


def run(**environment):
    words = [cxx(), "-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror"]
    source = Path(__file__).with_name("encryption_checks.cc")
    program = compiled("encryption_checks", words, [source], [ROOT / "backends"], ["-ldl"])
    environment = {**os.environ, **environment}
    return subprocess.run([program], capture_output=True, text=True, timeout=60, env=environment)


def test_records_that_were_sent_arrive_and_no_others():
    done = run(HOROVOD_TLS_LIBRARY="")
    assert done.returncode == 0 and done.stdout == "passed\n", done.stderr


@pytest.mark.parametrize(
    ("library", "reason"), [("/nonexistent/libcrypto.so", "cannot be opened"), ("libm.so.6", "AES-256-GCM")]
)
def test_a_library_that_is_none_is_named(library, reason):
    done = run(HOROVOD_TLS_LIBRARY=library)
    assert done.returncode == 1
    assert f"HOROVOD_TLS_LIBRARY={library}" in done.stderr and reason in done.stderr, done.stderr
    assert "apt install libssl3" in done.stderr


def test_a_stream_never_denies_bytes_that_are_not_reported_again():
    folder = ROOT / "backends" / "tcp"
    sources = [Path(__file__).with_name("stream_checks.cc"), folder / "stream.cc"]
    words = [cxx(), "-std=c++20", "-O1", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
    include = [ROOT / "hvd_core" / "include", ROOT / "backends", folder]
    program = compiled("stream_checks", words, sources, include, ["-ldl"])
    done = subprocess.run([program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout == "passed\n", done.stderr
