"""The Java that PySpark is about to start, looked at before: another version makes Spark fail with a text of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping

_LOOK_S = 60.0
# By PySpark's first number: the versions of Java with which it runs.
_NEEDED = {4: (17, 21), 3: (8, 17)}


def check_java(pyspark_version: str, environ: Mapping[str, str] = os.environ) -> None:
    """Raises RuntimeError if there is no Java, or one of a version with which this PySpark does not run."""
    lowest, highest = _NEEDED.get(int(pyspark_version.split(".")[0]), (17, None))
    wanted = f"PySpark {pyspark_version} needs Java {lowest}" + ("" if highest is None else f" to {highest}")
    home = environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java", path=environ.get("PATH"))
    if java is None or not os.access(java, os.X_OK):
        where = f"JAVA_HOME={home} has none" if home else "no java is on the path"
        raise RuntimeError(f"{wanted}, and {where}. Install one, and let JAVA_HOME name its folder.")
    found = version_of(java)
    if found is not None and (found < lowest or (highest is not None and found > highest)):
        raise RuntimeError(
            f"{wanted}, and {java} is Java {found}. Let JAVA_HOME name the folder of another one."
        )


def version_of(java: str | os.PathLike) -> int | None:
    """The first number of a Java's version (8 for 1.8); None if it does not tell."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_LOOK_S)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    return None if found is None else int(found[1])
