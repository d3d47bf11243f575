"""The last phase of the doctor: opens the backend on one rank and runs a small collective, in a process of its own.

A crash or a hang of a vendor's library is limited to that process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hvd_core.cli.steps import BAD, GOOD, Step

if TYPE_CHECKING:
    from hvd_core.backends.discovery.installed_backend import InstalledBackend

_SECONDS = 60.0
# With these variables the process would be a rank of an outer job, and wait for its peers.
_IDENTITY = ("HOROVOD_", "OMPI_", "PMIX_", "PMI_", "SLURM_", "TORCHELASTIC_")


def opened(backend: InstalledBackend) -> Step:
    """Opens a communicator of one rank, on the backend's device if it has one, and checks an allreduce."""
    with tempfile.TemporaryDirectory(prefix="hvd-doctor-") as folder:
        report = Path(folder) / "report.json"
        command = [
            sys.executable,
            "-m",
            "hvd_core.conformance",
            backend.name,
            "-np",
            "1",
            "--json",
            str(report),
        ]
        command += ["--case", "L1.open" if "comm" not in backend.provides else "L2.allreduce"]
        try:
            child = subprocess.run(
                command, env=_environment(), capture_output=True, text=True, timeout=_SECONDS, cwd=folder
            )
        except subprocess.TimeoutExpired:
            return Step(backend.name, "open", BAD, f"opening it on one rank takes longer than {_SECONDS:g} s")
        output = (child.stdout + child.stderr).strip().splitlines()
        if child.returncode == 0:
            return Step(backend.name, "open", GOOD, "opened on one rank; an allreduce gives the right values")
        texts = _texts(report) or output[-8:]
        return Step(backend.name, "open", BAD, "it does not work on one rank", texts)


def _environment() -> dict[str, str]:
    kept = ("HOROVOD_BACKEND_", "HOROVOD_PLUGINS_TOML")
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_IDENTITY) or name.startswith(kept)
    }


def _texts(report: Path) -> list[str]:
    try:
        cases = json.loads(report.read_text())["cases"]
    except (OSError, ValueError, KeyError):
        return []
    return [f"{case['case']}: {case['text']}" for case in cases if case.get("text")]
