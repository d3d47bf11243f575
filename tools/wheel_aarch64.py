"""Builds hvd-core's wheel for 64-bit ARM on another machine, for the Python of arm64 Debian.

    python tools/wheel_aarch64.py [-o DIST]      # `make wheel-aarch64`

Needs aarch64-linux-gnu-g++ (on Debian: g++-aarch64-linux-gnu) and a Python of this machine of the same version as
Debian's, whose arm64 headers tools/arm64.py downloads. auditwheel gives the wheel the tag of the cross compiler's C
library. Releases have wheels that are built on ARM, in manylinux images (pyproject.toml).
"""

import argparse
import os
import shutil
import sys
import time
from pathlib import Path

import arm64
import interpreters
import wheels

COMPILER = "aarch64-linux-gnu-g++"


def build(dist: Path) -> Path:
    """The wheel, in dist. Raises arm64.Unavailable."""
    if not shutil.which(COMPILER):
        raise arm64.Unavailable(f"{COMPILER} is not installed (on Debian: g++-aarch64-linux-gnu)")
    arm64.unpack()
    version = arm64.python_version()
    found = [python for python in interpreters.find([]) if python.minor == version]
    if not found:
        raise arm64.Unavailable(f"there is no Python {version} on this machine, which Debian's for arm64 is")
    python = found[0]

    wheels.set_environment()
    for name in ("CC", "CXX"):  # tools/aarch64.cmake names the compilers
        os.environ.pop(name)
    os.environ["HVD_ARM64_DEBIAN"] = str(arm64.DEBIAN)
    os.environ["HVD_PYTHON"] = str(wheels.builder_of(python, wheels.ROOT))
    os.environ["HVD_PYTHON_VERSION"] = version
    # How the wheel and the module are named.
    os.environ["_PYTHON_HOST_PLATFORM"] = "linux-aarch64"
    os.environ["SETUPTOOLS_EXT_SUFFIX"] = f".cpython-{version.replace('.', '')}-aarch64-linux-gnu.so"
    arguments = {
        "build-dir": arm64.PLACE / "hvd_core",
        "cmake.toolchain-file": wheels.ROOT / "tools" / "aarch64.cmake",
        "cmake.python-hints": "false",
    }
    options = [f"--config-settings={name}={value}" for name, value in arguments.items()]
    return wheels.build_wheel(python, wheels.ROOT, dist, options)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, default=wheels.ROOT / "dist", metavar="DIST")
    dist = parser.parse_args().output.resolve()
    dist.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    try:
        wheels.say(build(dist), begun)
    except arm64.Unavailable as reason:
        print(reason, file=sys.stderr)
        return arm64.UNAVAILABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
