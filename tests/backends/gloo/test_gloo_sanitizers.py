"""The gloo backend under ThreadSanitizer and Address/UB-Sanitizer, with ranks as threads of one process. Gloo itself is
not instrumented: what is found is this side of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
STRESS = ROOT / "tests/backends/host" / "threads_stress.cc"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("gloo_library")
@pytest.mark.parametrize("kind", ["thread", "address,undefined"])
@pytest.mark.parametrize("size", [2, 3])
def test_gloo_under_sanitizers(kind, size):
    """Compiles the backend once per sanitizer, in build/."""
    build = ROOT / "build" / f"gloo-{kind.split(',')[0]}"
    flags = f"-fsanitize={kind} -fno-sanitize-recover=all -O1 -g"
    headers = ROOT / "hvd_core" / "include"
    unpacked = Path(sys.prefix) / "gloo" / "usr"  # where `make` has put it if the system has none
    configure = ["cmake", "-S", ROOT / "backends" / "gloo", "-B", build, f"-DCMAKE_CXX_FLAGS={flags}"]
    configure += ["-DCMAKE_BUILD_TYPE=None", f"-DHVD_INCLUDE_DIR={headers}"]
    configure += [f"-DGLOO_ROOT={unpacked}"] if unpacked.is_dir() else []
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL, timeout=120)
    subprocess.run(["cmake", "--build", build, "-j2"], check=True, stdout=subprocess.DEVNULL, timeout=600)
    stress = build / "threads_stress"
    compile_ = ["c++", "-std=c++20", "-Wall", "-Wextra", *flags.split(), f"-I{headers}", STRESS]
    subprocess.run([*compile_, "-o", stress, "-ldl", "-pthread"], check=True, timeout=120)
    # What orders the accesses of Gloo's transport to each other is not seen.
    (build / "suppressions").write_text("race:gloo::transport::tcp::\n")
    variables = {
        "TSAN_OPTIONS": f"halt_on_error=1 suppressions={build / 'suppressions'}",
        "ASAN_OPTIONS": "detect_leaks=1",
    }
    done = subprocess.run(
        [stress, build / "libhvd_backend_gloo.so", str(size), "100"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0 and "passed" in done.stdout, done.stderr[-4000:]
