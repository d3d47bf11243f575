"""Prints the folder of a Java for Spark (JAVA_HOME), and gets Java 17 there if the system has no java.

    python tests/horovod/spark/get_java.py FOLDER [--fetch]

The system's java is taken where there is one. Otherwise, or with --fetch, Debian's package is downloaded and unpacked
into FOLDER; this needs apt and its lists (`apt-get update`), but not root, and changes nothing of the system. Ends with
status 1 and the reason where that cannot be done.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import get_debian

PACKAGE = "openjdk-17-jre-headless"


def version_of(java: str | Path) -> int | None:
    """The first number of a Java's version (8 for 1.8); None if it cannot be read."""
    said = subprocess.run([java, "-version"], capture_output=True, text=True)
    found = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    return None if found is None else int(found[1])


def system_java() -> Path | None:
    """JAVA_HOME of the java on the path, if Spark can use it."""
    found = shutil.which("java")
    if found is None or not 17 <= (version_of(found) or 0) <= 21:
        return None
    return Path(found).resolve().parents[1]


def unpacked_java(folder: Path) -> Path | None:
    """JAVA_HOME below `folder`, if Java was unpacked there."""
    return next((found.parents[1] for found in sorted(folder.glob("usr/lib/jvm/*/bin/java"))), None)


def fetch(folder: Path) -> None:
    """Unpacks Debian's package of Java into `folder`. Raises OSError or subprocess.SubprocessError."""
    get_debian.fetch(folder, [PACKAGE])
    # Java's settings are links into /etc, where nothing was unpacked.
    for link in (folder / "usr/lib/jvm").rglob("*"):
        if link.is_symlink() and link.readlink().is_absolute():
            own = folder / link.readlink().relative_to("/")
            if own.exists():
                link.unlink()
                shutil.copy(own, link)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where to unpack, for instance .venv/java")
    parser.add_argument("--fetch", action="store_true", help="also where the system has Java")
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    try:
        found = (None if asked.fetch else system_java()) or unpacked_java(folder)
        if found is None:
            fetch(folder)
            found = unpacked_java(folder)
        if found is None:
            raise OSError(f"the package {PACKAGE} has no bin/java")
        subprocess.run([found / "bin" / "java", "-version"], check=True, capture_output=True, text=True)
    except (OSError, subprocess.SubprocessError) as problem:
        detail = (getattr(problem, "stderr", None) or str(problem)).strip().splitlines()[-1:]
        print(
            f"Java is not here and cannot be downloaded ({''.join(detail)}): install {PACKAGE}, or run apt-get update "
            "and try again",
            file=sys.stderr,
        )
        return 1
    print(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
