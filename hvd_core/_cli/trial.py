"""The last phase of the doctor: opens the backend on one rank and runs a small collective, in processes of their own.

A crash or a hang of a vendor's library is limited to these processes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from hvd_core._base import sandbox
from hvd_core._cli.steps import BAD, GOOD, Step

# Longer than the kit gives a rank to open the backend, so that the kit's own words are shown.
_SECONDS = 90.0
# With these variables the process would be a rank of an outer job, and wait for its peers.
_IDENTITY = ("HOROVOD_", "OMPI_", "PMIX_", "PMI_", "SLURM_", "TORCHELASTIC_")


def opened(name: str, seconds: float = _SECONDS) -> Step:
    """Opens a communicator of one rank, on the backend's device if it has one, and checks an allreduce. A backend without
    communicators is opened only."""
    with tempfile.TemporaryDirectory(prefix="hvd-doctor-") as folder:
        report = Path(folder) / "report.json"
        kit = [sys.executable, "-m", "hvd_core.conformance", name, "-np", "1", "--json", str(report)]
        kit += ["--case", "L1.open", "--case", "L2.allreduce"]
        done = sandbox.run(kit, timeout_s=seconds, env=_environment(), cwd=folder, merge_output=True)
        if done.returncode is None:
            return Step(
                name, "open", BAD, f"opening it on one rank takes longer than {seconds:g} s", ended=True
            )
        if done.returncode == 0:
            return Step(name, "open", GOOD, "opened on one rank; an allreduce gives the right values")
        output = done.stdout.strip().splitlines()[-8:]
        if done.signal:
            return Step(
                name, "open", BAD, f"its process {sandbox.describe_exit(done.returncode)}", output, ended=True
            )
        texts = _texts(report) or output
        return Step(name, "open", BAD, "it does not work on one rank", texts)


def _environment() -> dict[str, str]:
    kept = ("HOROVOD_BACKEND_", "HOROVOD_PLUGINS_TOML")
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_IDENTITY) or name.startswith(kept)
    }


def _texts(report: Path) -> list[str]:
    """The faults that the kit found."""
    try:
        cases = json.loads(report.read_text())["cases"]
    except (OSError, ValueError, KeyError):
        return []
    return [
        f"{case['case']}: {case['text']}"
        for case in cases
        if case.get("text") and case.get("verdict") == "FAIL"
    ]
