"""Prints the folder to build this backend against (GLOO_ROOT), and gets Gloo there if the system does not have it.

    python backends/gloo/get_gloo.py FOLDER [--fetch]

Nothing is printed for the system's own libgloo-dev, which the compiler finds by itself. Otherwise, or with --fetch,
Debian's packages are downloaded and unpacked into FOLDER; this needs apt and its lists (`apt-get update`), but not root,
and changes nothing of the system. Ends with status 1 and the reason where that cannot be done.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HEADER = "include/gloo/transport/tcp/device.h"
# Every system that can run this has them.
PRESENT = ("libc6", "libgcc-s1", "libstdc++6")


def libraries(package: str) -> list[str]:
    """``package`` and the libraries that it needs, those of every system excepted; for a -dev package, no other one."""
    found = [package]
    for name in found:
        said = subprocess.run(
            ["apt-cache", "depends", "--no-recommends", "--no-suggests", name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for needed in re.findall(r"^ +\|?Depends: (lib[\w.+-]+)$", said, re.MULTILINE):
            if needed not in (*found, *PRESENT) and not needed.endswith("-dev"):
                found.append(needed)
    return found


def fetch(folder: Path) -> None:
    """Unpacks Debian's packages of Gloo into ``folder``. Raises OSError or CalledProcessError."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        packages = libraries("libgloo-dev")
        subprocess.run(
            ["apt-get", "download", *packages], cwd=place, check=True, capture_output=True, text=True
        )
        for archive in sorted(Path(place).glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", archive, folder], check=True, capture_output=True, text=True)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where to unpack, for instance .venv/gloo")
    parser.add_argument("--fetch", action="store_true", help="also where the system has Gloo")
    asked = parser.parse_args()
    root = asked.folder.resolve() / "usr"
    if (root / HEADER).is_file():
        print(root)
        return 0
    if not asked.fetch and any((Path(prefix) / HEADER).is_file() for prefix in ("/usr", "/usr/local")):
        return 0
    try:
        fetch(asked.folder.resolve())
    except (OSError, subprocess.CalledProcessError) as problem:
        detail = (getattr(problem, "stderr", None) or str(problem)).strip().splitlines()[-1:]
        print(
            "Gloo is not here and cannot be downloaded "
            f"({''.join(detail)}): install libgloo-dev, or run apt-get update and try again",
            file=sys.stderr,
        )
        return 1
    print(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
