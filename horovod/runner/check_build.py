"""`horovodrun --check-build`: what this installation can do, in the layout that scripts look for, and in which versions.

Imports no framework and starts no MPI: asking must not take seconds. The first lines are those of the original, with
remarks behind; docs/compatibility.md says what `[X]` means in each.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from contextlib import redirect_stdout
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hvd_core.cli.survey import Row

# What it is called, its module, and the distributions that bring it.
_FRAMEWORKS = (
    (
        "TensorFlow",
        "tensorflow",
        ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-intel", "tf-nightly"),
    ),
    ("PyTorch", "torch", ("torch",)),
    ("MXNet", "mxnet", ("mxnet", "mxnet-mkl", "mxnet-cu112", "mxnet-cu110")),
)


def check_build() -> str:
    """The text of --check-build."""
    from hvd_core.version import __version__

    with redirect_stdout(sys.stderr):  # what plugins print is not part of it
        rows, fault = _backends()
    launcher, no_launcher = _mpirun()
    lines = [f"Horovod v{__version__}:", "", "Available Frameworks:"]
    lines += [_framework(*words) for words in _FRAMEWORKS]
    lines += ["", "Available Controllers:", _mpi_controller(rows, launcher, no_launcher)]
    engine = _exists("hvd_core._core")
    lines += [_line(engine, "Gloo", "without MPI: the engine's own" if engine else "the engine is not built")]
    lines += ["", "Available Tensor Operations:"]
    lines += [_operations(rows, name) for name in ("NCCL", "DDL", "CCL", "MPI", "Gloo")]
    lines += ["", "Available Backends:"]
    lines += [_line(_usable(row), f"{row.name} {row.version}".strip(), _said(row)) for row in rows]
    lines += [f"    {line}" for line in fault.splitlines()]
    lines += ["", "Versions:", *_versions(launcher)]
    return "\n".join(lines)


def _line(present: bool, name: str, remark: str = "") -> str:
    return f"    [{'X' if present else ' '}] {name}{f'  ({remark})' if remark else ''}"


def _framework(name: str, module: str, distributions: tuple[str, ...]) -> str:
    """Whether the framework is installed and we have a face for it; its version from metadata, where there are some."""
    if not _exists(module):
        return _line(False, name)
    found = next(filter(None, map(_version, distributions)), "")
    if (Path(__file__).parents[1] / module / "__init__.py").is_file():
        return _line(True, name, found)
    return _line(False, name, f"{found or 'it'} is installed; horovod.{module} is not part of this release")


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def _backends() -> tuple[list[Row], str]:
    """Every backend but those for tests, asked whether it works here; and what keeps us from asking."""
    from hvd_core.backends.discovery.registry import embedded
    from hvd_core.backends.errors import BackendError
    from hvd_core.cli import survey

    try:
        settings = survey.config()
        for name in {candidate.name for candidate in _wheels()}:
            survey.export(settings, name)
        rows = survey.survey(settings)[0]
    except (BackendError, ValueError) as error:
        return [], str(error)
    for_tests = {b.name for b in embedded() if b.candidate.for_tests}
    return [row for row in rows if row.name not in for_tests], ""


def _wheels():
    from hvd_core.backends import discovery

    return discovery.wheels()


def _usable(row: Row) -> bool:
    from hvd_core.cli.survey import AVAILABLE

    return row.status == AVAILABLE


def _said(row: Row) -> str:
    """Where a backend comes from, and what it says of itself or what is wrong with it."""
    if _usable(row):
        return ": ".join(filter(None, (row.distribution, row.detail)))
    reason = " ".join(row.detail.split()).rstrip(".")
    fix = f"; fix: {row.fix}" if row.fix else ""
    return ": ".join(filter(None, (row.distribution, row.status, reason))) + fix


def _operations(rows: list[Row], name: str) -> str:
    """Whether the library that once was built in is there: its backend is installed and says that it works here."""
    found = [row for row in rows if row.name == name.lower()]
    working = [row for row in found if _usable(row)]
    if working:
        return _line(
            True, name, f"backend {working[0].name} {working[0].version}: {working[0].detail}".rstrip(": ")
        )
    if found:
        return _line(False, name, f"backend {found[0].name} is installed, see below")
    others = ", ".join(row.name for row in rows if row.origin == "embedded" and _usable(row))
    return _line(
        False, name, f"not needed: CPU tensors go over {others}" if name == "Gloo" and others else ""
    )


def _mpi_controller(rows: list[Row], launcher: str, no_launcher: str) -> str:
    """Whether jobs can be started by MPI and communicate over it."""
    working = any(row.name == "mpi" and _usable(row) for row in rows)
    if launcher and working:
        return _line(True, "MPI", f"started by {launcher}")
    if launcher:
        return _line(
            False, "MPI", f"{launcher} can start jobs; backend mpi is not there to communicate over it"
        )
    return _line(False, "MPI", no_launcher if working else "")


def _mpirun() -> tuple[str, str]:
    """The mpirun that --mpi would take, or why there is none."""
    from horovod.runner.mpi_flavours import find_mpirun

    try:
        return find_mpirun(os.environ).describe(), ""
    except ValueError as error:
        return "", str(error)


def _versions(launcher: str) -> list[str]:
    from hvd_core.backends.discovery.installed_backend import ABI
    from hvd_core.version import __version__

    known = [
        ("hvd-core", f"{__version__} (backend ABI {'.'.join(map(str, ABI))})"),
        ("Python", f"{platform.python_version()} ({platform.system()} {platform.machine()})"),
        ("mpirun", launcher),
        ("mpi4py", _version("mpi4py")),
    ]
    return [f"    {name} {text}" for name, text in known if text]
