"""Where the embedded backends' libraries are: HVD_TEST_SHM_LIB and HVD_TEST_TCP_LIB, the installed package, or built
here with cmake.
"""

import importlib.util
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]


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
