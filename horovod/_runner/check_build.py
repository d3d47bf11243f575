"""`horovodrun --check-build`: the frameworks, backends and versions of this installation, in the layout that scripts
expect.

Imports no framework and starts no MPI, because that would take seconds. The first lines are those of Horovod, with
remarks behind; docs/compatibility.md explains `[X]` for each section.
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
    from hvd_core._cli.plugin_list import Row

# (name, module, distributions that contain it).
_FRAMEWORKS = (
    (
        "TensorFlow",
        "tensorflow",
        ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-intel", "tf-nightly"),
    ),
    ("PyTorch", "torch", ("torch",)),
    ("MXNet", "mxnet", ("mxnet", "mxnet-mkl", "mxnet-cu112", "mxnet-cu110")),
    ("JAX", "jax", ("jax",)),
)


def check_build() -> str:
    """The text of --check-build."""
    from hvd_core.version import __version__

    with redirect_stdout(sys.stderr):  # the output of plugins is not part of the text
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
    """The line of a framework: [X] if it is installed and horovod has a front end for it; its version, if it is known."""
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
    """(all backends except those for tests, after their probes; the error that prevented the search, or "")."""
    from hvd_core._cli import plugin_list
    from hvd_core.backends import _discovery
    from hvd_core.backends._discovery.registry import embedded
    from hvd_core.backends.errors import BackendError

    try:
        settings = plugin_list.config()
        for name in {candidate.name for candidate in _discovery.wheels()}:
            plugin_list.export(settings, name)
        rows = plugin_list.survey(settings)[0]
    except (BackendError, ValueError) as error:
        return [], str(error)
    for_tests = {b.name for b in embedded() if b.candidate.for_tests}
    return [row for row in rows if row.name not in for_tests], ""


def _usable(row: Row) -> bool:
    from hvd_core._cli.plugin_list import AVAILABLE

    return row.status == AVAILABLE


def _said(row: Row) -> str:
    """The distribution of a backend, with its probe's detail or the reason why it cannot be used."""
    if _usable(row):
        return ": ".join(filter(None, (row.distribution, row.detail)))
    reason = " ".join(row.detail.split()).rstrip(".")
    fix = f"; fix: {row.fix}" if row.fix else ""
    return ": ".join(filter(None, (row.distribution, row.status, reason))) + fix


def _operations(rows: list[Row], name: str) -> str:
    """The line of a library that Horovod was built with: [X] if its backend is installed and its probe succeeds."""
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
    """The line of the MPI controller: [X] if MPI can start jobs and the backend mpi works here."""
    working = any(row.name == "mpi" and _usable(row) for row in rows)
    if launcher and working:
        return _line(True, "MPI", f"started by {launcher}")
    if launcher:
        return _line(
            False, "MPI", f"{launcher} can start jobs; backend mpi is not there to communicate over it"
        )
    return _line(False, "MPI", no_launcher if working else "")


def _mpirun() -> tuple[str, str]:
    """(description of the mpirun that --mpi would use, ""), or ("", the reason why it would find no mpirun)."""
    from horovod._runner.mpi import find_mpirun

    try:
        return find_mpirun(os.environ).describe(), ""
    except ValueError as error:
        return "", str(error)


def _versions(launcher: str) -> list[str]:
    from hvd_core.backends._discovery.installed_backend import ABI
    from hvd_core.version import __version__

    known = [
        ("hvd-core", f"{__version__} (backend ABI {'.'.join(map(str, ABI))})"),
        ("Python", f"{platform.python_version()} ({platform.system()} {platform.machine()})"),
        ("mpirun", launcher),
        ("mpi4py", _version("mpi4py")),
    ]
    return [f"    {name} {text}" for name, text in known if text]
