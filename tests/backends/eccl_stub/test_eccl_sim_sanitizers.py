"""The simulated vendor library under ThreadSanitizer and Address/UB-Sanitizer, with ranks as threads."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "simulators" / "eccl"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["thread", "address,undefined"])
@pytest.mark.parametrize("memory", ["address", "handle"])
def test_simulator_under(kind, memory):
    """Compiles the library once per sanitizer, in build/."""
    build = ROOT / "build" / f"eccl_sim-{kind.split(',')[0]}"
    flags = f"-fsanitize={kind} -fno-sanitize-recover=all -O1 -g"
    configure = ["cmake", "-S", SOURCE, "-B", build, f"-DCMAKE_CXX_FLAGS={flags}", "-DCMAKE_BUILD_TYPE=None"]
    for command in (configure, ["cmake", "--build", build, "-j2"]):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=400)
    stress = build / "simulator_stress"
    compile_ = ["c++", "-std=c++17", "-Wall", "-Wextra", *flags.split(), f"-I{SOURCE / 'include'}"]
    source = Path(__file__).with_name("simulator_stress.cc")
    libraries = [f"-L{build}", "-leccl_sim", f"-Wl,-rpath,{build}", "-pthread"]
    subprocess.run([*compile_, source, "-o", stress, *libraries], check=True, timeout=120)
    environment = dict(os.environ, TOPS_SIM_MEMORY=memory, TSAN_OPTIONS="halt_on_error=1")
    for ranks in (2, 4):
        command = [stress, str(ranks), "12", "1"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0 and "passed" in done.stdout, done.stderr[-4000:]
