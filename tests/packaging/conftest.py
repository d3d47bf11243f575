"""The wheel of hvd-core, built once for all packaging tests. It shares the build folder of the editable install that
`make test` made, so that it costs one link.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """Path of the wheel, as `python -m build` makes it from the checkout."""
    pytest.importorskip("build", reason="building needs what is in requirements/test.txt")
    pytest.importorskip("scikit_build_core", reason="building needs what is in requirements/build.txt")
    folder = tmp_path_factory.mktemp("wheel")
    tools = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(folder), str(ROOT)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=840, env=tools)
    assert result.returncode == 0, f"{command} failed:\n{result.stdout[-4000:]}\n{result.stderr[-4000:]}"
    (path,) = folder.glob("hvd_core-*.whl")
    return path
