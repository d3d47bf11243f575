"""Folders with plugins in them, as pip would leave them, and processes that see these folders.

``announce`` writes a distribution's metadata by hand, for tests in which the wheel itself is not the point; ``wheel``
builds a real one with setuptools.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from textwrap import dedent

import horovod
from launchers import program_words

PACKAGES = str(Path(horovod.__file__).resolve().parents[1])

GOOD = """
from pathlib import Path
from hvd_core.backends import BackendDescriptor

def describe():
    return BackendDescriptor(
        name="{name}", abi=(1, 0), devices=("cpu",), provides=frozenset({{"comm"}}), library=Path("/nowhere/lib{name}.so")
    )
"""

HERE = 'abi = [1, 0]\ndevices = ["widget"]\nprovides = ["{provides}"]\ndevice_files = ["/"]\n'
"""A static description with which the automatic choice considers a backend, on every machine."""


def announce(
    site: Path,
    name: str,
    code: str | None = None,
    distribution: str | None = None,
    version: str = "0.3.0",
    entry: str | None = None,
    suffix: str = "dist-info",
    static: str | None = None,
) -> Path:
    """Leave a distribution in ``site`` that announces the backend ``name``; ``code`` is its module's text.
    ``static``: its static description. The module."""
    distribution = distribution or f"hvd-backend-{name}"
    module = distribution.replace("-", "_")
    site.mkdir(parents=True, exist_ok=True)
    file = site / f"{module}.py"
    file.write_text(dedent(GOOD.format(name=name) if code is None else code))
    if static is not None:
        (site / f"{name}.hvd.toml").write_text(static)
    metadata = site / (f"{module}-{version}.dist-info" if suffix == "dist-info" else f"{module}.egg-info")
    metadata.mkdir(exist_ok=True)
    text = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    (metadata / ("METADATA" if suffix == "dist-info" else "PKG-INFO")).write_text(text)
    entry = entry or f"{module}:describe"
    (metadata / "entry_points.txt").write_text(f"[hvd_core.backends]\n{name} = {entry}\n")
    return file


def wheel(folder: Path, name: str, code: str, version: str = "0.3.0") -> Path:
    """A real wheel of a plugin in ``folder``: built by pip and setuptools from the packages that are installed here."""
    source = folder / f"{name}-{version}-source"
    package = source / f"hvd_backend_{name}"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(dedent(code))
    (source / "pyproject.toml").write_text(
        dedent(
            f"""
            [build-system]
            requires = ["setuptools"]
            build-backend = "setuptools.build_meta"
            [project]
            name = "hvd-backend-{name}"
            version = "{version}"
            [project.entry-points."hvd_core.backends"]
            {name} = "hvd_backend_{name}:describe"
            [tool.setuptools]
            packages = ["hvd_backend_{name}"]
            """
        )
    )
    pip("wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", folder, source)
    return next(folder.glob(f"hvd_backend_{name}-{version}-*.whl"))


def install(wheel: Path, site: Path) -> None:
    """Unpack a wheel into ``site``: all that pip would do with one of pure Python."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)


def pip(*words: object) -> None:
    quiet = ["--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *map(str, words), *quiet], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr


def python(program, *sites: Path, cwd: Path, env: dict[str, str] | None = None):
    """A finished Python that sees ``sites``; ``program`` is as program_words() takes it. Both its outputs as text."""
    path = os.pathsep.join([*map(str, sites), PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        program_words(program),
        env={**os.environ, "PYTHONPATH": path, **(env or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
    )
