"""Where the shm backend's library is: HVD_TEST_SHM_LIB, the installed package, or built here with cmake."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NAME = "libhvd_backend_shm.so"
sys.path.insert(0, str(HERE))


@pytest.fixture(scope="session")
def shm_library():
    named = os.environ.get("HVD_TEST_SHM_LIB")
    if named:
        return Path(named)
    spec = importlib.util.find_spec("hvd_core")
    for folder in spec.submodule_search_locations or [] if spec else []:
        if (found := Path(folder) / "lib" / NAME).exists():
            return found
    build = ROOT / "build" / "shm"
    source = ROOT / "backends" / "shm"
    for step in (["-S", source, "-B", build], ["--build", build, "--target", "hvd_backend_shm", "-j2"]):
        subprocess.run(["cmake", *map(str, step)], check=True, stdout=subprocess.DEVNULL, timeout=600)
    return build / NAME


@pytest.fixture
def ranks(shm_library, tmp_path):
    """ranks(size, body, *args, threads=False, ...): see ranks.py."""
    from ranks import in_processes, in_threads

    def run(size, body, *args, threads=False, **options):
        return (in_threads if threads else in_processes)(shm_library, tmp_path, size, body, *args, **options)

    return run
