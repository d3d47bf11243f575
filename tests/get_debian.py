"""Unpacks Debian's packages, and the libraries that they need and the system lacks, into a folder. Tests start their
programs from there.

    python tests/get_debian.py FOLDER PACKAGE ...

Needs apt and its lists (`apt-get update`), but not root, and changes nothing of the system. Ends with status 1 and the
reason where that cannot be done.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path


def is_installed(package: str) -> bool:
    """Whether the system has the package."""
    words = ["dpkg-query", "-W", "-f", "${db:Status-Status}", package]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout == "installed"


def with_libraries(packages: list[str]) -> list[str]:
    """``packages``, and the libraries that they need and the system lacks."""
    found = list(packages)
    for name in found:
        words = ["apt-cache", "depends", "--no-recommends", "--no-suggests", name]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        for needed in re.findall(r"^ +\|?Depends: (lib[\w.+-]+)$", said, re.MULTILINE):
            if needed not in found and not is_installed(needed):
                found.append(needed)
    return found


def fetch(folder: Path, packages: list[str]) -> None:
    """Unpacks exactly these packages into ``folder``. Raises OSError or subprocess.SubprocessError."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        # A network that answers nothing must not hold the set-up.
        limits = [
            "-o",
            "Acquire::Retries=0",
            "-o",
            "Acquire::http::Timeout=20",
            "-o",
            "Acquire::https::Timeout=20",
        ]
        words = ["apt-get", *limits, "download", *packages]
        subprocess.run(words, cwd=place, check=True, capture_output=True, text=True, timeout=300)
        for archive in sorted(Path(place).glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", archive, folder], check=True, capture_output=True, text=True)


def main() -> int:
    """The command."""
    folder, *packages = sys.argv[1:]
    try:
        fetch(Path(folder).resolve(), with_libraries(packages))
    except (OSError, subprocess.SubprocessError) as problem:
        detail = (getattr(problem, "stderr", None) or str(problem)).strip().splitlines()[-1:]
        print(f"{packages[0]} cannot be downloaded ({''.join(detail)}): run apt-get update", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
