"""hvd-core for 64-bit ARM: the wheel is cross-compiled here, and used by two emulated ranks of an unpacked arm64 Debian
(tools/wheel_aarch64.py, tools/arm64.py).

qemu runs each rank's threads on this machine's processor: an order of loads and stores that x86 keeps and ARM does not is
not found here.
"""

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NEEDED = (
    "cloudpickle>=2",
    "numpy>=1.23",
    "packaging>=22",
    "psutil>=5.9",
    "pyyaml>=6",
    "rich>=13",
    "stevedore>=5",
)
TEST_TOOLS = ("pytest>=8", "pytest-timeout>=2.3", "psutil>=5.9")
# Those that need no compiler.
ENGINE_TESTS = (
    *("tests/hvd_core/engine/test_collectives.py", "tests/hvd_core/engine/test_numpy_face.py"),
    *("tests/hvd_core/engine/test_join.py", "tests/hvd_core/engine/test_process_sets.py"),
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def arm64():
    """tools/arm64.py, its Debian with hvd-core's wheel and the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "tools"))
        module = importlib.import_module("arm64")
    dist = module.PLACE / "dist"
    words = [sys.executable, str(ROOT / "tools" / "wheel_aarch64.py"), "-o", str(dist)]
    built = subprocess.run(words, capture_output=True, text=True)
    if built.returncode == module.UNAVAILABLE:
        pytest.skip(built.stderr.strip())
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = dist.glob("*.whl")
    assert re.fullmatch(r"hvd_core-[\d.]+-(cp3\d+)-\1-(many)?linux_(\d+_\d+_)?aarch64\.whl", wheel.name)
    try:
        module.run("true")
    except (module.Unavailable, RuntimeError) as reason:
        pytest.skip(f"arm64 programs do not run here: {reason}")
    module.install(wheel, *NEEDED, *TEST_TOOLS)
    work = module.DEBIAN / "work"
    shutil.rmtree(work, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "build")
    shutil.copytree(ROOT / "tests", work / "tests", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", work)
    return module


@pytest.mark.parametrize("backend", ["shm", "tcp"])
def test_numpy_on_two_ranks(arm64, backend):
    program = ["/usr/bin/python3", "/work/tests/system/packaging/installed_programs.py", "collectives"]
    launcher = ["python3", "-m", "horovod.runner.launch", "-np", "2"]
    said = arm64.run(*launcher, *program, HOROVOD_BACKEND=backend)
    for rank in range(2):
        assert f"rank {rank} of 2 on aarch64, {backend}: right" in said


def test_the_engine(arm64):
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", "--timeout=1200"]
    shell = ["sh", "-c", 'cd /work && exec python3 "$@"', "sh"]
    said = arm64.run(*shell, *words, *ENGINE_TESTS, timeout=3000)
    assert re.search(r"^\d+ passed", said, re.MULTILINE), said
