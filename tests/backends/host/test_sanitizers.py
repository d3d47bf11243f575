"""The embedded backends under ThreadSanitizer and Address/UB-Sanitizer, with ranks as threads of one process."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["thread", "address,undefined"])
@pytest.mark.parametrize("size", [2, 3])
def test_stress_under(backend_name, kind, size):
    """Compiles the backend once per sanitizer, in build/."""
    build = ROOT / "build" / f"{backend_name}-{kind.split(',')[0]}"
    flags = f"-fsanitize={kind} -fno-sanitize-recover=all -O1 -g"
    configure = ["cmake", "-S", ROOT / "backends" / backend_name, "-B", build, f"-DCMAKE_CXX_FLAGS={flags}"]
    subprocess.run([*configure, "-DCMAKE_BUILD_TYPE=None"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(
        ["cmake", "--build", build, "--target", f"hvd_backend_{backend_name}", "-j2"], check=True, timeout=600
    )
    stress = build / "threads_stress"
    source = Path(__file__).with_name("threads_stress.cc")
    compile_ = ["c++", "-std=c++20", "-Wall", "-Wextra", *flags.split(), f"-I{ROOT / 'hvd_core' / 'include'}"]
    subprocess.run([*compile_, source, "-o", stress, "-ldl", "-pthread"], check=True, timeout=120)
    command = [stress, build / f"libhvd_backend_{backend_name}.so", str(size), "150"]
    environment = dict(os.environ, TSAN_OPTIONS="halt_on_error=1", ASAN_OPTIONS="detect_leaks=1")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and "passed" in done.stdout, done.stderr[-4000:]
