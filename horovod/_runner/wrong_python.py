"""After a failed job: says that the ranks ran a Python for which hvd-core is not installed, if that is so. For the
launcher, on any thread.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

_SECONDS = 20.0
_LOOK = "import importlib.util, sys; sys.exit(77 if importlib.util.find_spec('hvd_core') is None else 0)"


def hint(command: Sequence[str], exit_code: int) -> str:
    """A line about the Python that `command` begins with, if it cannot import hvd_core; else "".

    `exit_code`: of the rank that failed first. An exception that a Python program does not catch has the code 1.
    """
    python = shutil.which(command[0]) if command else None
    if exit_code != 1 or python is None or not os.path.basename(python).startswith("python"):
        return ""
    if not sys.executable or os.path.abspath(python) == os.path.abspath(sys.executable):
        return ""
    try:
        looked = subprocess.run(
            [python, "-c", _LOOK],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if looked.returncode != 77:
        return ""
    return (
        f"horovodrun: the ranks ran {python}, for which hvd-core is not installed. It is installed for "
        f"{sys.executable}: start the ranks with that Python, or install hvd-core for the other one.\n"
    )
