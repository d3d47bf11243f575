"""Where the embedded backends' libraries are: HVD_TEST_SHM_LIB and HVD_TEST_TCP_LIB, the installed package, or built
here with cmake. A test that asks for `ranks` or `library` runs once per backend; a module whose tests are about one
of them overrides the fixture `backend_name`.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))


def find_library(backend):
    named = os.environ.get(f"HVD_TEST_{backend.upper()}_LIB")
    if named:
        return Path(named)
    name = f"libhvd_backend_{backend}.so"
    spec = importlib.util.find_spec("hvd_core")
    for folder in spec.submodule_search_locations or [] if spec else []:
        if (found := Path(folder) / "lib" / name).exists():
            return found
    build = ROOT / "build" / backend
    source = ROOT / "backends" / backend
    target = f"hvd_backend_{backend}"
    for step in (["-S", source, "-B", build], ["--build", build, "--target", target, "-j2"]):
        subprocess.run(["cmake", *map(str, step)], check=True, stdout=subprocess.DEVNULL, timeout=600)
    return build / name


@pytest.fixture(params=["shm", "tcp"])
def backend_name(request):
    return request.param


@pytest.fixture
def library(backend_name):
    return find_library(backend_name)


@pytest.fixture
def ranks(library, tmp_path):
    """ranks(size, body, *args, threads=False, ...): see ranks.py."""
    from ranks import in_processes, in_threads

    def run(size, body, *args, threads=False, **options):
        return (in_threads if threads else in_processes)(library, tmp_path, size, body, *args, **options)

    return run
