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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hvd_core._cli.plugin_list import Row

# (name, module, distributions that contain it).
_FRAMEWORKS = (
    ("TensorFlow", "tensorflow", ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly")),
    ("PyTorch", "torch", ("torch",)),
    ("MXNet", "mxnet", ("mxnet", "mxnet-mkl", "mxnet-cu112", "mxnet-cu110")),
    ("JAX", "jax", ("jax",)),
)


def check_build() -> str:
    """The text of --check-build."""
    from hvd_core._cli.plugin_list import AVAILABLE
    from hvd_core.backends._discovery.installed_backend import ABI
    from hvd_core.version import __version__

    with redirect_stdout(sys.stderr):  # the output of plugins is not part of the text
        rows, fault = _backends()
    working = {row.name: row for row in rows if row.status == AVAILABLE}
    launcher, no_launcher = _mpirun()
    lines = [f"Horovod v{__version__}:", "", "Available Frameworks:"]
    for name, module, distributions in _FRAMEWORKS:
        present = _exists(module)
        lines.append(
            _line(present, name, next(filter(None, map(_version, distributions)), "") if present else "")
        )
    remark = no_launcher if "mpi" in working else ""
    if launcher:
        alone = "can start jobs; backend mpi is not there to communicate over it"
        remark = f"started by {launcher}" if "mpi" in working else f"{launcher} {alone}"
    engine = _exists("hvd_core._core")
    lines += ["", "Available Controllers:", _line(bool(launcher) and "mpi" in working, "MPI", remark)]
    lines += [_line(engine, "Gloo", "without MPI: the engine's own" if engine else "the engine is not built")]
    lines += ["", "Available Tensor Operations:"]
    for name in ("NCCL", "DDL", "CCL", "MPI", "Gloo"):
        row, remark = working.get(name.lower()), ""
        if row is not None:
            remark = f"backend {row.name} {row.version}: {row.detail}".rstrip(": ")
        elif name == "Gloo":
            others = ", ".join(row.name for row in working.values() if row.origin == "embedded")
            remark = f"not needed: CPU tensors go over {others}"
        lines.append(_line(row is not None, name, remark))
    lines += ["", "Available Backends:"]
    for row in rows:
        reason = row.detail
        if row.name not in working:
            reason = f"{row.status}: {' '.join(row.detail.split()).rstrip('.')}"
            reason += f"; fix: {row.fix}" if row.fix else ""
        remark = ": ".join(filter(None, (row.distribution, reason)))
        lines.append(_line(row.name in working, f"{row.name} {row.version}".strip(), remark))
    lines += [f"    {line}" for line in fault.splitlines()]
    versions = {
        "hvd-core": f"{__version__} (backend ABI {'.'.join(map(str, ABI))})",
        "Python": f"{platform.python_version()} ({platform.system()} {platform.machine()})",
        "mpirun": launcher,
        "mpi4py": _version("mpi4py"),
    }
    lines += ["", "Versions:", *(f"    {name} {text}" for name, text in versions.items() if text)]
    return "\n".join(lines)


def _line(present: bool, name: str, remark: str = "") -> str:
    return f"    [{'X' if present else ' '}] {name}{f'  ({remark})' if remark else ''}"


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


def _mpirun() -> tuple[str, str]:
    """(description of the mpirun that --mpi would use, ""), or ("", the reason why it would find no mpirun)."""
    from horovod._runner.mpi import find_mpirun

    try:
        return find_mpirun(os.environ).describe(), ""
    except ValueError as error:
        return "", str(error)
