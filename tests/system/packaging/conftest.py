"""Shared by the packaging tests, made once: the wheel of hvd-core, a clean environment with it, and a vendor's
project and wheel made there. hvd-core's build shares the folder of the editable install that `make test` made, so that
it costs one link.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clean_environment import CleanEnvironment, build_wheel

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """Path of the wheel, as `python -m build` makes it from the checkout."""
    pytest.importorskip("build", reason="building needs the extra test")
    pytest.importorskip("scikit_build_core", reason="building needs what is in requirements/build.txt")
    folder = tmp_path_factory.mktemp("wheel")
    tools = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(folder), str(ROOT)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=840, env=tools)
    assert result.returncode == 0, f"{command} failed:\n{result.stdout[-4000:]}\n{result.stderr[-4000:]}"
    (path,) = folder.glob("hvd_core-*.whl")
    return path


@pytest.fixture(scope="session")
def clean(wheel, tmp_path_factory):
    """An environment with hvd-core's wheel."""
    environment = CleanEnvironment(tmp_path_factory.mktemp("clean") / "venv")
    environment.install(wheel)
    return environment


@pytest.fixture(scope="session")
def project(clean, tmp_path_factory):
    """The folder of a new backend ``acme`` for devices ``npu``, written by the wheel's own command."""
    folder = tmp_path_factory.mktemp("vendor")
    said = clean.run("hvd", "plugin", "new", "acme", "--device", "npu", cwd=folder)
    assert "hvd plugin check acme" in said
    return folder / "hvd-backend-acme"


@pytest.fixture(scope="session")
def installed(clean, project):
    """The environment with the backend's wheel, which was built against the headers of the installed hvd-core."""
    headers = clean.run(str(clean.python), "-c", "import hvd_core; print(hvd_core.get_include())").strip()
    build_wheel(
        project,
        "--no-isolation",
        f"-Ccmake.define.HVD_INCLUDE_DIR={headers}",
        # `make` builds the template file by file and optimized. Here that would take five times as long.
        *("-Ccmake.build-type=None", "-Ccmake.define.CMAKE_UNITY_BUILD=ON"),
        "-Ccmake.define.CMAKE_UNITY_BUILD_BATCH_SIZE=0",
        env={**os.environ, "PYTHONPATH": str(clean.site)},
    )
    (built,) = (project / "dist").glob("*.whl")
    assert re.fullmatch(r"hvd_backend_acme-0\.1\.0-py3-none-[\w.]+\.whl", built.name)
    clean.install(built)
    return clean
